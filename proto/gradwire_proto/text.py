"""Words from other machines, in lines for people."""

from __future__ import annotations


def printable(text: str) -> str:
    """Without what would steer a terminal, or begin a line of its own."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
