"""How shares get from one node to another; base says what every way guarantees."""
