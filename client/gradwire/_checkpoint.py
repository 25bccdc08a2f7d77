"""A session's part of a checkpoint: what lossy wires have lost, and where chance goes on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from gradwire_proto.residuals import ITEMSIZE, MOST_COUNT, parts_of
from gradwire_proto.v1 import aggregator_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gradwire._wires import Wires

log = logging.getLogger(__name__)

VERSION = 1

State: TypeAlias = "dict[str, Any]"
"""Tensors, numbers, words, and lists and dictionaries of them: torch.load(weights_only=True)
takes it.
"""


class Residual(NamedTuple):
    """What was lost of one tensor."""

    identity: int
    elements: int
    counts: torch.Tensor
    """int64, one for each chunk: how often it has been reduced."""
    values: torch.Tensor
    """fp32, flat; empty where nothing is fed back."""
    geometry: int
    """Digests how the daemons cut tensors."""


def collect(parts: Iterable[pb.Residual]) -> Iterator[Residual]:
    """Put together what the daemon says."""
    parts = iter(parts)
    for head in parts:
        values, start = torch.empty(head.size // ITEMSIZE), 0
        while start < len(values):
            part = torch.frombuffer(next(parts).payload, dtype=torch.float32)
            values[start : start + len(part)] = part
            start += len(part)
        counts = torch.tensor(list(head.counts), dtype=torch.int64)
        yield Residual(head.identity, head.elements, counts, values, head.geometry)


def parts(residuals: Iterable[Residual]) -> Iterator[pb.Residual]:
    """What the daemon is told."""
    for residual in residuals:
        yield pb.Residual(
            identity=residual.identity,
            elements=residual.elements,
            counts=residual.counts.tolist(),
            size=ITEMSIZE * len(residual.values),
            geometry=residual.geometry,
        )
        yield from parts_of(residual.identity, residual.values.contiguous())


def pack(layout: dict[str, Any], ways: list[list[Residual]], wires: Wires) -> State:
    """A session's state, without what was lost of buckets that are no more."""
    packed = []
    for residuals in ways:
        named = {}
        current = wires.lasting(each.identity for each in residuals)
        for each in residuals:
            if each.identity not in current:
                continue
            naming = wires.known.get(each.identity)
            named[f"{each.identity:016x}"] = {
                "about": naming.text if naming else "",
                "lasting": naming is not None and naming.lasting,
                "elements": each.elements,
                "counts": each.counts,
                "values": each.values,
                "geometry": f"{each.geometry:016x}",
            }
        packed.append(named)
    return {"version": VERSION, "layout": layout, "residuals": packed}


def unpack(state: State, layout: dict[str, Any], wires: Wires) -> list[list[Residual]]:
    """What of a state this session can go on with, for each of its ways; the rest is logged.

    Raises ValueError for what is no such state.
    """
    if not isinstance(state, dict) or state.get("version") != VERSION:
        found = state.get("version") if isinstance(state, dict) else type(state).__name__
        raise ValueError(f"expected what state_dict() of this release returned, got {found}")
    try:
        ways = [[_saved(*item) for item in named.items()] for named in state["residuals"]]
        workers = int(state["layout"]["workers"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"expected what state_dict() returned, got less: {error!r}") from None
    if len(ways) not in (workers, 2 * workers):
        raise ValueError(f"expected residuals of {workers} workers, got {len(ways)}")
    if state["layout"] != layout:
        log.warning(
            "what lossy wires had lost begins anew: it was kept by a job of another layout"
            " (%s; now %s). Each rank loads what it saved, in a job of the same nodes",
            state["layout"],
            layout,
        )
        return [[] for _ in range(layout["workers"])]
    for each in (saved for way in ways for saved in way if saved.lasting):
        wires.recall(each.residual.identity, each.about)
    return [_lasting(each) for each in ways]


class _Saved(NamedTuple):
    """A residual as a state has it."""

    residual: Residual
    about: str
    lasting: bool
    """It means the same in another run."""


def _saved(identity: str, saved: dict[str, Any]) -> _Saved:
    elements, counts, values = int(saved["elements"]), saved["counts"], saved["values"]
    geometry = int(saved["geometry"], 16)
    residual = Residual(int(identity, 16), elements, counts, values, geometry)
    good = (
        counts.dtype == torch.int64
        and counts.dim() == values.dim() == 1
        and counts.numel() > 0
        and 0 <= counts.min() <= counts.max() < MOST_COUNT
        and values.dtype == torch.float32
        and values.numel() in (0, elements)
        and bool(values.isfinite().all())
        and 0 < residual.identity < 1 << 64
    )
    if not good:
        raise ValueError(
            f"residual {identity}: expected counts from 0 on, and a finite fp32 value for each"
            f" of {elements} elements or none, got {counts}, {values.numel()} x {values.dtype}"
        )
    return _Saved(residual, str(saved["about"]), bool(saved["lasting"]))


def _lasting(residuals: list[_Saved]) -> list[Residual]:
    kept = [saved.residual for saved in residuals if saved.lasting]
    if len(kept) < len(residuals):
        log.warning(
            "what lossy wires had lost of %d tensors begins anew: their parameters had no names"
            " that last. Give connect(model=...) the model",
            len(residuals) - len(kept),
        )
    return kept
