"""What an engine counts beside its work, for those who look on. Read in any thread."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gradwire_server.codecs import Codec

SAMPLED_EVERY = 64
"""Encoded shares of which one is decoded again, to see what it lost."""

SAMPLED_ELEMENTS = 16384
"""That much of it."""


class RankFigures(NamedTuple):
    """Of one local rank."""

    straggling: float = 0.0
    last_arrivals: int = 0
    steps: int = 0
    communicating: float = 0.0
    """Seconds."""


class JobFigures(NamedTuple):
    """Of one job."""

    in_flight_bytes: int = 0
    in_flight_limit_bytes: int = 0
    missing_ranks: int = 0


class Payload:
    """Bytes of shares that are exchanged with one peer, as they are before they are encoded."""

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0


class CodecMeter:
    """Of one wire. Shares are encoded in several threads."""

    def __init__(self) -> None:
        self.raw_bytes = 0
        self.encoded_bytes = 0
        self.error_ratio: float | None = None
        """Of the last share that was looked at: what was lost, to what there was."""
        self._shares = 0
        self._lock = threading.Lock()

    def encoded(self, values: torch.Tensor, size: int) -> bool:
        """So many bytes were made of these; whether it should be seen what that loses."""
        with self._lock:
            self.raw_bytes += values.nbytes
            self.encoded_bytes += size
            due = not self._shares % SAMPLED_EVERY
            # Of an empty share there is nothing to see.
            self._shares += bool(values.numel())
        return due and bool(values.numel())

    def sample(self, codec: Codec, values: torch.Tensor, seed: int) -> None:
        """See what the codec loses of some of these values; nothing where all are 0."""
        some = values[: min(SAMPLED_ELEMENTS, codec.segment)]
        code = torch.empty(codec.size(some.numel()), dtype=torch.uint8)
        back = torch.empty_like(some)
        codec.encode(some, code, seed)
        codec.decode(code, back)
        whole = torch.linalg.vector_norm(some, dtype=torch.float64).item()
        lost = torch.linalg.vector_norm(back.sub_(some), dtype=torch.float64).item()
        if whole and math.isfinite(lost / whole):
            self.error_ratio = lost / whole


class Meters:
    """Of one engine."""

    def __init__(self, peers: Iterable[int]) -> None:
        self.payloads = {peer: Payload() for peer in peers}
        self._codecs: dict[str, CodecMeter] = {}

    def codec(self, wire: str) -> CodecMeter:
        """The meter of a wire, which is in use from now on."""
        return self._codecs.setdefault(wire, CodecMeter())

    def codecs(self) -> list[tuple[str, CodecMeter]]:
        """All wires that were used."""
        return list(self._codecs.items())
