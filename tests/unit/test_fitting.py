"""Tables of the status fit the terminal, and say what is left out."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from gradwire_ops.fitting import Column, Fitting
from gradwire_ops.status_view import LINKS, RANKS


def drawn(table: Fitting, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def filled(columns: tuple[Column, ...]) -> Fitting:
    return Fitting(columns, [["12345678"] * len(columns)])


@pytest.mark.parametrize("columns", [RANKS, LINKS], ids=["ranks", "links"])
def test_in_eighty_columns_all_that_is_shown_can_be_read(columns: tuple[Column, ...]) -> None:
    text = drawn(filled(columns), 80)
    assert "…" not in text
    assert all(column.name in text for column in columns)
    first, _, last = text.partition("a wider terminal also shows:")
    assert all(column.name in first for column in columns if not column.goes)
    assert last.strip()


def test_with_room_for_all_nothing_is_left_out() -> None:
    text = drawn(filled(RANKS), 200)
    assert "wider" not in text
    assert text.count("12345678") == len(RANKS)


def test_the_least_important_go_first_and_what_is_empty_always() -> None:
    columns = (Column("kept"), Column("second", 1), Column("first", 2), Column("empty"))
    table = Fitting(columns, [["a" * 8, "b" * 8, "c" * 8, ""]])
    assert "empty" not in drawn(table, 80)
    text = drawn(table, 25)
    assert "first" in text.splitlines()[-1]
    assert "second" in text.splitlines()[1]
    narrow = drawn(table, 14)
    assert "aaaaaaaa" in narrow
    assert "bbbbbbbb" not in narrow
