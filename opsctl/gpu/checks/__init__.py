"""The health checks: pure functions from evidence and settings to findings, one file per area."""
