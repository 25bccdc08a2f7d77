"""What the explorer disturbs, and what must come of it."""
