"""Numbers of bytes, as people write and read them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_SIZE = re.compile(r"(\d+)\s*([a-zA-Z]*)")


def parse_size(text: str) -> int:
    """`4096`, `64KiB`, `25 MiB`, `1GiB`. Raises ValueError for anything else, and for zero."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2].upper() not in _UNITS or not int(match[1]):
        raise ValueError(f"'{text}' is not a size; write for instance 4096, 64KiB or 25MiB")
    return int(match[1]) * _UNITS[match[2].upper()]


def format_size(size: float) -> str:
    """In the largest unit that leaves at least 1, whole numbers without a fraction."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024:
            break
        size /= 1024
        unit = larger
    return f"{size:.0f} {unit}" if size == int(size) else f"{size:.1f} {unit}"
