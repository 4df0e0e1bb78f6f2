"""Commands, processes, units and containers."""
