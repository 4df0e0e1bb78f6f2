"""Getting to know a host: what of SGLang runs and lies there, and the inventory and playbooks that fit it."""
