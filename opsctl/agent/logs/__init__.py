"""Server logs: read, followed, collected."""
