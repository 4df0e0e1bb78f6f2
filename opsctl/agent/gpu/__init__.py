"""GPUs and the host around them: evidence for the health checks."""
