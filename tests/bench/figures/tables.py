"""Tables in Markdown, one kind for each kind of measurement. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from figures.verdict import size_text, value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from figures.setting import Benchmark, Program, Row
    from figures.verdict import Rows, Verdict

BATCH = 32
"""Samples that a rank is said to take a step. It only scales samples per second."""

_HEADINGS = (
    "setting",
    "size",
    "ours, ms",
    "gloo, ms",
    "x gloo",
    "limit, ms",
    "efficiency",
    "daemon CPU, s/GB",
    "p50 / p99, ms",
    "gloo's, ms",
    "aim",
    "",
)


def table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """The first column is to the left, numbers to the right."""
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, rule, *lines))


def benchmarks(settings: Sequence[Benchmark], rows: Rows) -> str:
    """All their rows."""
    lines = (
        _benchmark_line(setting, row)
        for setting in settings
        for row in rows.get(setting.name, ())
    )
    return table(_HEADINGS, lines)


def _benchmark_line(setting: Benchmark, row: Row) -> tuple[str, ...]:
    bars = [bar for bar in setting.bars if bar.size_bytes == row["size_bytes"]]
    reached = [(value(row, bar.figure) or 0) >= bar.least for bar in bars]
    return (
        setting.title,
        size_text(row["size_bytes"]),
        milliseconds(row["seconds"]),
        milliseconds(row["gloo_seconds"]),
        f"{row['speedup_vs_gloo']:.2f}",
        milliseconds(row["limit_seconds"]),
        "" if row["efficiency"] is None else f"{row['efficiency']:.2f}",
        f"{row['daemon_cpu_seconds_per_gigabyte']:.2f}",
        _pair(row["p50_seconds"], row["p99_seconds"]),
        _pair(row["gloo_p50_seconds"], row["gloo_p99_seconds"]),
        ", ".join(f"{bar.least:g} {bar.figure}" for bar in bars),
        ", ".join("reached" if each else "**missed**" for each in reached),
    )


def milliseconds(seconds: float | None) -> str:
    """Three digits, more only where they stand before the point."""
    if seconds is None:
        return ""
    number = seconds * 1e3
    digits = 2 if number < 10 else 1 if number < 100 else 0
    return f"{number:.{digits}f}"


def _pair(one: float | None, other: float | None) -> str:
    return "" if one is None else f"{milliseconds(one)} / {milliseconds(other)}"


def aims(verdicts: Iterable[Verdict]) -> str:
    """Everything that was aimed for."""
    headings = ("setting", "size", "aim", "found", "")
    lines = ((one.setting, one.size, one.aim, one.found, one.word) for one in verdicts)
    return table(headings, lines)


def losses(settings: Sequence[Benchmark], rows: Rows) -> Iterator[str]:
    """A line for each row in which gloo was quicker."""
    for setting in settings:
        for row in rows.get(setting.name, ()):
            if row["speedup_vs_gloo"] < 1:
                yield (
                    f"- {setting.title}, {size_text(row['size_bytes'])}:"
                    f" {row['speedup_vs_gloo']:.2f} x gloo"
                )


def copies(program: Program, rows: Rows, ours: Row | None) -> str:
    """The plain copy, and how often it would fit into our time."""
    lines = []
    for row in rows.get(program.name, ()):
        times = "" if ours is None else f"{ours['seconds'] / row['seconds']:.1f}"
        lines.append(
            (program.title, size_text(row["size_bytes"]), milliseconds(row["seconds"]), times)
        )
    return table(("control", "size", "ms", "copies in the time of 1 node x 4 ranks"), lines)


def sockets(program: Program, rows: Rows, ours: Sequence[Row]) -> str:
    """Gigabytes a second of tensor, and CPU for each, beside those of a socket."""
    measured = {row["size_bytes"]: row for row in ours}
    lines = []
    for row in rows.get(program.name, ()):
        size = row["size_bytes"]
        one = measured.get(size)
        lines.append(
            (
                size_text(size),
                "" if one is None else f"{size / one['seconds'] / 1e9:.2f}",
                "" if one is None else f"{size / one['gloo_seconds'] / 1e9:.2f}",
                f"{size / row['seconds'] / 1e9:.2f}",
                "" if one is None else f"{one['daemon_cpu_seconds_per_gigabyte']:.2f}",
                f"{row['cpu_seconds'] / size * 1e9:.2f}",
            )
        )
    headings = ("size", "ours, GB/s", "gloo, GB/s", "socket, GB/s", "daemon CPU, s/GB")
    return table((*headings, "socket CPU, s/GB"), lines)


def cores(counts: Sequence[tuple[int, str]], rows: Rows) -> str:
    """Of settings by name, with the number of cores that each daemon had."""
    lines = []
    for count, name in counts:
        for row in rows.get(name, ()):
            speed = row["size_bytes"] / row["seconds"] / 1e9
            lines.append(
                (
                    str(count),
                    size_text(row["size_bytes"]),
                    f"{speed:.2f}",
                    f"{speed / count:.2f}",
                    f"{1 / row['daemon_cpu_seconds_per_gigabyte']:.2f}",
                )
            )
    headings = ("cores of a daemon", "size", "GB/s", "GB/s per core", "GB per CPU second")
    return table(headings, lines)


def training(programs: Sequence[Program], rows: Rows) -> str:
    """Samples per second, and beside them those of a single node at the same pace."""
    lines = []
    alone: dict[str, float] = {}
    for program in programs:
        pace = program.arguments.split("--layer-ms ")[-1]
        for row in rows.get(program.name, ()):
            ours, gloo = _samples(row, "seconds"), _samples(row, "gloo_seconds")
            if row["nodes"] == 1:
                alone[pace] = max(ours, gloo)
            lines.append(
                (
                    program.title,
                    milliseconds(row["seconds"]),
                    milliseconds(row["gloo_seconds"]),
                    f"{ours:.0f}",
                    f"{gloo:.0f}",
                    _beats(row, ours, alone.get(pace)),
                    _beats(row, gloo, alone.get(pace)),
                )
            )
    headings = ("setting", "ours, ms a step", "gloo, ms a step", "ours, samples/s")
    one = ("ours beats one node", "gloo does")
    return table((*headings, "gloo, samples/s", *one), lines)


def urgent(program: Program, rows: Rows) -> str:
    """Steps with nothing urgent, and with half of it."""
    lines = [
        (
            f"{program.title}, {row['loop']}",
            milliseconds(row["seconds"]),
            milliseconds(row["urgent_seconds"]),
            f"{row['urgent_seconds'] / row['seconds'] - 1:+.1%}",
        )
        for row in rows.get(program.name, ())
    ]
    return table(("loop", "all alike, ms a step", "half is urgent", "difference"), lines)


def _samples(row: Row, field: str) -> float:
    samples: float = BATCH * row["nodes"] / row[field]
    return samples


def _beats(row: Row, samples: float, alone: float | None) -> str:
    if row["nodes"] == 1 or alone is None:
        return ""
    return f"{'yes' if samples > alone else '**no**'}, {samples / alone:.2f} x"


def overlap(programs: Sequence[Program], rows: Rows) -> str:
    """What of the communication was hidden behind compute (P08)."""
    lines = (
        _overlap_line(program, row)
        for program in programs
        for row in rows.get(program.name, ())
        if row["nodes"] > 1
    )
    return table(
        (
            "setting",
            "compute, ms",
            "communication, ms",
            "both, ms",
            "step, ms",
            "first bucket, ms",
            "last layer, ms",
            "first bucket before last layer",
            "step below the sum",
        ),
        lines,
    )


def _overlap_line(program: Program, row: Row) -> tuple[str, ...]:
    both = row["compute_seconds"] + row["communication_seconds"]
    saved = both - row["seconds"]
    return (
        program.title,
        milliseconds(row["compute_seconds"]),
        milliseconds(row["communication_seconds"]),
        milliseconds(both),
        milliseconds(row["seconds"]),
        milliseconds(row["first_bucket_seconds"]),
        milliseconds(row["last_layer_seconds"]),
        "yes" if row["overlapped"] else "**no**",
        f"yes, by {milliseconds(saved)} ms" if saved > 0 else "**no**",
    )
