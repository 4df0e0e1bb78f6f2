"""What both ends share. It is sent to the host: Python 3.8, the standard library, nothing of the operating system."""
