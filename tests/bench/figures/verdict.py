"""What was aimed for, and whether it was reached. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from figures.setting import MB, Benchmark, Comparison, Overlap
from gradwire_ops.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from figures.setting import Aim, Bar, Cell, Figure, Row, Setting

    Rows = Mapping[str, Sequence[Row]]
    """Of each setting, by its name; what was not measured is not there."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """On one thing that was aimed for."""

    setting: str
    size: str
    aim: str
    found: str
    reached: bool | None
    """None: not measured."""

    @property
    def word(self) -> str:
        """For people."""
        return {True: "reached", False: "**missed**", None: "not measured"}[self.reached]


def size_text(size: int) -> str:
    """As the setting has it: in KiB and MiB, or in millions of bytes."""
    return f"{size // MB} MB" if size % MB == 0 else format_size(size)


def row_of(rows: Rows, cell: Cell) -> Row | None:
    """None where it was not measured."""
    return next(
        (row for row in rows.get(cell.setting, ()) if row["size_bytes"] == cell.size_bytes),
        None,
    )


def value(row: Row, figure: Figure) -> float | None:
    """None where the row has none."""
    match figure:
        case "x gloo":
            found: float | None = row["speedup_vs_gloo"]
        case "efficiency":
            found = row["efficiency"]
        case "of the links' rate":
            found = _share_of_rate(row)
        case "x fewer bytes":
            found = _exact_bytes(row) / row["wire_bytes"]
    return found


def _exact_bytes(row: Row) -> float:
    """What each node has to send where nothing is lost."""
    sent: float = 2 * (row["nodes"] - 1) / row["nodes"] * row["size_bytes"]
    return sent


def _share_of_rate(row: Row) -> float:
    """What each node has to send, over what its links, all of one rate, could have sent."""
    sent = 8 * _exact_bytes(row)
    rate: float = row["rate_bits_per_second"] * row["interfaces"]
    share: float = sent / (rate * row["seconds"])
    return share


def verdicts(settings: Sequence[Setting], aims: Sequence[Aim], rows: Rows) -> Iterator[Verdict]:
    """On every bar, in the order of the settings, then on what else is aimed for."""
    for setting in settings:
        if isinstance(setting, Benchmark):
            measured = {row["size_bytes"]: row for row in rows.get(setting.name, ())}
            for bar in setting.bars:
                yield _on_bar(setting, bar, measured.get(bar.size_bytes))
    titles = {setting.name: setting.title for setting in settings}
    for aim in aims:
        match aim:
            case Comparison():
                yield _on_comparison(aim, titles, rows)
            case Overlap():
                yield from _on_overlap(aim, titles, rows)


def _on_bar(setting: Benchmark, bar: Bar, row: Row | None) -> Verdict:
    found = None if row is None else value(row, bar.figure)
    return Verdict(
        setting.title,
        size_text(bar.size_bytes),
        _amount(bar.least, bar.figure),
        "" if found is None else _amount(found, bar.figure),
        None if found is None else found >= bar.least,
    )


def _amount(number: float, figure: Figure) -> str:
    return f"{number:.2f} {figure}"


def _on_comparison(comparison: Comparison, titles: Mapping[str, str], rows: Rows) -> Verdict:
    one, other = row_of(rows, comparison.one), row_of(rows, comparison.other)
    ratio = None
    if one is not None and other is not None:
        ratio = _byte_seconds(one) / _byte_seconds(other)
    return Verdict(
        titles[comparison.one.setting],
        size_text(comparison.one.size_bytes),
        comparison.claim,
        "" if ratio is None else f"{ratio:.2f} x",
        None if ratio is None else ratio <= comparison.most,
    )


def _on_overlap(aim: Overlap, titles: Mapping[str, str], rows: Rows) -> Iterator[Verdict]:
    title, claim = titles[aim.setting], "the first bucket goes before the last layer begins"
    share = f"a step takes at most {aim.most:g} x compute + communication"
    row = next(iter(rows.get(aim.setting, ())), None)
    if row is None:
        yield Verdict(title, "", claim, "", None)
        yield Verdict(title, "", share, "", None)
        return
    overlapped: bool = row["overlapped"]
    yield Verdict(title, "", claim, "yes" if overlapped else "no", overlapped)
    both = row["compute_seconds"] + row["communication_seconds"]
    found: float = row["seconds"] / both
    yield Verdict(title, "", share, f"{found:.2f} x", found <= aim.most)


def _byte_seconds(row: Row) -> float:
    seconds: float = row["seconds"] / row["size_bytes"]
    return seconds
