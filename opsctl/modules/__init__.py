"""One file per family of desired states. Modules never import one another."""
