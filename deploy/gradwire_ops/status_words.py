"""The numbers of a status as people read them, here and on the page (gradwire_server.page)."""

from __future__ import annotations

from statistics import median_low
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradwire_proto.v1 import aggregator_pb2 as pb

_RATES = ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s")


def format_rate(bytes_per_second: float) -> str:
    """Three digits, in bits a second, as links are sold; nothing where it is not known."""
    number, unit = bytes_per_second * 8, 0
    if number <= 0:
        return ""
    while number >= 999.5 and unit < len(_RATES) - 1:
        number, unit = number / 1000, unit + 1
    return f"{_digits(number)} {_RATES[unit]}"


def format_time(seconds: float) -> str:
    """Three digits; nothing where it is not known."""
    if seconds <= 0:
        return ""
    if seconds < 0.9995e-3:
        return f"{_digits(seconds * 1e6)} \u00b5s"
    if seconds < 0.9995:
        return f"{_digits(seconds * 1e3)} ms"
    return f"{_digits(seconds)} s"


def slow_links(links: Sequence[pb.LinkStatus]) -> dict[int, str]:
    """To the nodes of the slow ones, than what they are slower; the page has the same rules."""
    slow = {}
    for link in links:
        others = [each for each in links if each is not link]
        if link.bandwidth < link.usual_bandwidth / 2:
            slow[link.node] = "it was"
        elif _is_behind(link, others):
            slow[link.node] = "the others"
    return slow


def _is_behind(link: pb.LinkStatus, others: Sequence[pb.LinkStatus]) -> bool:
    reached = [each.bandwidth for each in others if each.bandwidth > 0]
    trips = [each.round_trip_seconds for each in others if each.round_trip_seconds > 0]
    narrow = bool(reached) and 0 < link.bandwidth < median_low(reached) / 2
    far = bool(trips) and link.round_trip_seconds > 4 * median_low(trips) + 0.002
    return narrow or far


def _digits(number: float) -> str:
    return f"{number:.{0 if number >= 99.95 else 1 if number >= 9.995 else 2}f}"
