"""Training over every wire: what convergence.py runs, and what it makes of it."""
