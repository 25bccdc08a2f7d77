"""Hypothesis tries the same examples on every run: what is red once is red for everybody."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile(
    "gradwire", derandomize=True, max_examples=30, deadline=None, database=None
)
settings.load_profile("gradwire")
