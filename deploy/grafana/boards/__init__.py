"""The dashboards of Gradwire, as code: what each asks, and in which order it shows it."""

from boards import failures, jobs, links, node

__all__ = ["BOARDS"]

BOARDS = (jobs.BOARD, links.BOARD, node.BOARD, failures.BOARD)
