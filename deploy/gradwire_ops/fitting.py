"""Tables that leave columns out where a terminal is too narrow to read them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

_ANY_WIDTH = 10_000


@dataclass(frozen=True, slots=True)
class Column:
    """One, with how soon it may go: 0 never, then the larger the sooner."""

    name: str
    goes: int = 0


class Fitting:
    """A table as wide as the terminal at most; columns without any text are left out always."""

    def __init__(self, columns: Sequence[Column], rows: Iterable[Iterable[Text | str]]) -> None:
        texts = [
            [Text(each) if isinstance(each, str) else each for each in row] for row in rows
        ]
        self._rows = texts
        self._columns = [
            (place, column)
            for place, column in enumerate(columns)
            if any(row[place].plain for row in texts)
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """See rich."""
        columns = self._columns
        while self._width(columns, console, options) > options.max_width:
            first = max((column.goes for _, column in columns), default=0)
            if not first:
                break
            columns = [each for each in columns if each[1].goes < first]
        yield self._table(columns)
        if hidden := [each[1].name for each in self._columns if each not in columns]:
            yield Text(f"a wider terminal also shows: {', '.join(hidden)}", style="dim")

    def _width(
        self,
        columns: Sequence[tuple[int, Column]],
        console: Console,
        options: ConsoleOptions,
    ) -> int:
        anything = options.update(max_width=_ANY_WIDTH)
        return console.measure(self._table(columns), options=anything).maximum

    def _table(self, columns: Sequence[tuple[int, Column]]) -> Table:
        table = Table(*(column.name for _, column in columns))
        for row in self._rows:
            table.add_row(*(row[place] for place, _ in columns))
        return table
