"""Schedules: how a chunk's shares travel between the nodes. Pure; see effects."""
