"""The daemon: reduces the gradient buckets of a node's ranks with those of the other nodes."""
