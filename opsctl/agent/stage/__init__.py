"""Draft models as releases: received, verified, switched."""
