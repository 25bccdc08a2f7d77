"""What a network laboratory is to look like, and the figures that follow from it. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

MOST_NODES = 250
MOST_INTERFACES = 8
LEAST_MTU, MOST_MTU = 576, 9000
DEFAULT_MTU = 1500
LONGEST_DELAY_SECONDS = 2.0
ETHERNET_BYTES = 14
"""What a queue counts of each packet beside its MTU."""
TCP_BYTES = 52
"""What TCP with time stamps takes from each packet: 20 of IP, 20 of TCP, 12 of options."""

_UNITS = {"bit": 1, "kbit": 1_000, "mbit": 1_000_000, "gbit": 1_000_000_000}
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?bit)")
_SLOWEST_RATE = 1_000_000
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_DELAY = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s)")
_BURST_SECONDS, _LEAST_BURST = 0.002, 128 << 10
_QUEUE_SECONDS, _LEAST_QUEUE = 0.004, 512 << 10
# A sender's window can't grow beyond what the kernel gives a socket, 4 MiB by default and not
# all of it payload.
_WINDOW_BYTES = 2 << 20
_MOST_STREAMS = 32
_RELAY_BYTES = 8 << 20
_UNLIMITED = 20_000_000_000
"""Taken for the rate of a link without one, where a buffer's size hangs on it."""


class LabError(Exception):
    """There is no laboratory here; the text says what is missing and what to do."""


@dataclass(frozen=True, slots=True)
class LabPlan:
    """Nodes, and the links between each and the switch in the middle."""

    nodes: int
    rates: tuple[int | None, ...] = ()
    """Bits per second of each node's links, each way; None: no limit; empty: no limits."""
    delay_seconds: float = 0.0
    """What the links add to a round trip between two nodes."""
    mtu: int = DEFAULT_MTU
    interfaces: int = 1
    """Links of each node. Each has the whole rate, and leads to a network of its own."""

    def __post_init__(self) -> None:
        """Refuse what can't be built."""
        if not 1 <= self.nodes <= MOST_NODES:
            raise ValueError(f"expected 1 to {MOST_NODES} nodes, got {self.nodes}")
        if self.rates and len(self.rates) != self.nodes:
            raise ValueError(f"{len(self.rates)} rates for {self.nodes} nodes")

    def rate(self, node: int) -> int | None:
        """Bits per second of a link of this node; None: no limit."""
        return self.rates[node] if self.rates else None

    @property
    def all_rates(self) -> tuple[int | None, ...]:
        """One for each node, whether or not they were given."""
        return self.rates or (None,) * self.nodes

    @property
    def hop_seconds(self) -> float:
        """Delay of one link in one direction: a round trip takes two links twice."""
        return self.delay_seconds / 4


def parse_rate(text: str) -> int | None:
    """Bits per second: `1gbit`, `2500mbit`, `0.5gbit`; None for `none`.

    Raises ValueError for anything else, and for less than 1mbit.
    """
    word = text.strip().lower()
    if word == "none":
        return None
    match = _RATE.fullmatch(word)
    if match is None:
        raise ValueError(f"'{text}' is not a rate; write for instance 1gbit, 500mbit or none")
    rate = round(float(match[1]) * _UNITS[match[2]])
    if rate < _SLOWEST_RATE:
        raise ValueError(f"'{text}' is less than 1mbit")
    return rate


def format_rate(rate: int | None) -> str:
    """As parse_rate reads it, in the largest unit that leaves at least 1."""
    if rate is None:
        return "none"
    unit = max((name for name in _UNITS if rate >= _UNITS[name]), key=lambda name: _UNITS[name])
    return f"{rate / _UNITS[unit]:g}{unit}"


def parse_delay(text: str) -> float:
    """Seconds: `50ms`, `200us`, `0.1s`, `0`. Raises ValueError for anything else."""
    word = text.strip().lower()
    if word == "0":
        return 0.0
    match = _DELAY.fullmatch(word)
    if match is None:
        raise ValueError(f"'{text}' is not a delay; write for instance 50ms, 200us or 0")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds > LONGEST_DELAY_SECONDS:
        raise ValueError(f"'{text}' is longer than {LONGEST_DELAY_SECONDS:g}s")
    return seconds


def burst_bytes(rate: int) -> int:
    """What a link lets through at once after a pause.

    Twice the largest packet that the kernel hands down whole, else it is cut into many and the
    rate is missed; and what passes in 2 ms, since a timer that comes late loses the rest.
    """
    return max(_LEAST_BURST, math.ceil(rate / 8 * _BURST_SECONDS))


def queue_bytes(rate: int) -> int:
    """What may wait for a link, the burst included, before packets are dropped."""
    return burst_bytes(rate) + max(_LEAST_QUEUE, math.ceil(rate / 8 * _QUEUE_SECONDS))


def payload_share(mtu: int) -> float:
    """The part of a link's rate that TCP can fill with payload: 0.956 for 1500."""
    return (mtu - TCP_BYTES) / (mtu + ETHERNET_BYTES)


def stream_count(rate: int, delay_seconds: float) -> int:
    """Connections that together have windows for this rate at this round trip, with room."""
    wanted = 2 * rate / 8 * delay_seconds
    return min(1 + math.ceil(wanted / _WINDOW_BYTES), _MOST_STREAMS)


def relay_bytes(rate: int | None, hop_seconds: float) -> int:
    """Room of a relay for what is on its way in one direction."""
    return _RELAY_BYTES + 2 * math.ceil((rate or _UNLIMITED) / 8 * hop_seconds)
