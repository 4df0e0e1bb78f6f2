"""Connections to hosts, the client side of the agent, bulk transfer, HTTP through the connection."""
