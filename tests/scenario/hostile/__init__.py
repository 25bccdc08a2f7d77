"""What a daemon has to bear: messages that are damaged, cut, invented, repeated, disordered."""
