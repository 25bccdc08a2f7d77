"""The table of figures: what `make bench` measures, and how it is told."""
