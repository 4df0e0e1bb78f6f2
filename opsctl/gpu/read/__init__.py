"""Read what the tools of a GPU host say, of any driver."""
