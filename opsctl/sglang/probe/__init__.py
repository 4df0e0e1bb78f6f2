"""Probes: prompts sent, acceptance and speed measured and judged."""
