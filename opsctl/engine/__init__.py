"""Playbooks: loading, templating, observe, plan, apply, undo, and the order of hosts."""
