"""A session's part of a checkpoint: what lossy wires have lost, and where chance goes on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from gradwire_proto.v1 import aggregator_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gradwire._wires import Naming

log = logging.getLogger(__name__)

VERSION = 1
PART_ELEMENTS = 1 << 18

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


def collect(parts: Iterable[pb.Residual]) -> Iterator[Residual]:
    """Put together what the daemon says."""
    head, data = None, bytearray()
    for part in parts:
        if head is None:
            head, data = part, bytearray()
        data += part.payload
        if len(data) >= head.size:
            values = torch.frombuffer(data, dtype=torch.float32) if data else torch.empty(0)
            counts = torch.tensor(list(head.counts), dtype=torch.int64)
            yield Residual(head.identity, head.elements, counts, values)
            head = None


def parts(residuals: Iterable[Residual]) -> Iterator[pb.Residual]:
    """What the daemon is told."""
    for residual in residuals:
        data = residual.values.contiguous().view(torch.uint8).numpy().data
        head = pb.Residual(
            identity=residual.identity,
            elements=residual.elements,
            counts=residual.counts.tolist(),
            size=len(data),
        )
        for start in range(0, max(1, len(data)), 4 * PART_ELEMENTS):
            head.payload = bytes(data[start : start + 4 * PART_ELEMENTS])
            yield head
            head = pb.Residual(identity=residual.identity)


def pack(layout: dict[str, Any], ways: list[list[Residual]], known: dict[int, Naming]) -> State:
    """A session's state."""
    packed = []
    for residuals in ways:
        named = {}
        for each in residuals:
            naming = known.get(each.identity)
            named[f"{each.identity:016x}"] = {
                "about": naming.text if naming else "",
                "lasting": naming is not None and naming.lasting,
                "elements": each.elements,
                "counts": each.counts,
                "values": each.values,
            }
        packed.append(named)
    return {"version": VERSION, "layout": layout, "residuals": packed}


def unpack(state: State, layout: dict[str, Any]) -> list[list[Residual]]:
    """What of a state this session can go on with, for each of its ways; the rest is logged.

    Raises ValueError for what is no such state.
    """
    if not isinstance(state, dict) or state.get("version") != VERSION:
        found = state.get("version") if isinstance(state, dict) else type(state).__name__
        raise ValueError(f"expected what state_dict() of this release returned, got {found}")
    if state["layout"] != layout:
        log.warning(
            "what lossy wires had lost begins anew: it was kept by a job of another layout"
            " (%s; now %s). Each rank loads what it saved, in a job of the same nodes",
            state["layout"],
            layout,
        )
        return [[] for _ in state["residuals"]]
    return [list(_lasting(named)) for named in state["residuals"]]


def _lasting(named: dict[str, dict[str, Any]]) -> Iterator[Residual]:
    nameless = 0
    for identity, each in named.items():
        if each["lasting"]:
            number = int(identity, 16)
            yield Residual(number, each["elements"], each["counts"], each["values"])
        else:
            nameless += 1
    if nameless:
        log.warning(
            "what lossy wires had lost of %d tensors begins anew: their parameters had no names"
            " that last. Give connect(model=...) the model",
            nameless,
        )
