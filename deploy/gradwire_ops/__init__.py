"""What an operator runs: the `gradwire` command."""
