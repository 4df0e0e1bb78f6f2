"""Checkpoint folders: read and fetched."""
