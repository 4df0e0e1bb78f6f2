"""What runs on the host: Python 3.8 or later, standard library only, sent over the connection, living in memory."""
