from __future__ import annotations

import pytest

from gradwire_ops.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("64KiB", 65536),
        ("25 MiB", 26214400),
        ("1gib", 1 << 30),
        (" 7B ", 7),
    ],
)
def test_a_size_is_a_number_with_or_without_a_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5MiB", "64KB", "MiB", "1 MiB each"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write for instance 4096, 64KiB or 25MiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (65536, "64 KiB"), (1536, "1.5 KiB"), (1 << 40, "1 TiB")],
)
def test_a_size_is_written_in_its_largest_unit(size: int, text: str) -> None:
    assert format_size(size) == text
