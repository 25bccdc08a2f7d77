"""How tensors of one description go along a node's chain of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire_proto.arithmetic import Arithmetic
from gradwire_proto.chunks import Cut, cut, cut_alone
from gradwire_proto.dtypes import sum_itemsize
from gradwire_proto.v1 import tensor_pb2

if TYPE_CHECKING:
    from gradwire._tensor import Described
    from gradwire_proto.arena import Layout

MOST_PLANS = 1024


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """How tensors of one description go along the chain."""

    arithmetic: Arithmetic
    cut: Cut
    chunks: int
    gathers: bool
    looks: bool
    """It may hold NaNs and infinities."""
    inspects: bool
    """Every rank looks for them in what it brings."""


class Plans:
    """The plans of one chain, each made once: the same few buckets come again in every step."""

    def __init__(self, layout: Layout, world_size: int, *, alone: bool) -> None:
        self._layout = layout
        self._world_size = world_size
        self._alone = alone
        self._made: dict[Described, Plan] = {}

    def of(self, described: Described) -> Plan:
        """The plan for such tensors."""
        plan = self._made.get(described)
        if plan is None:
            if len(self._made) >= MOST_PLANS:
                self._made.clear()
            plan = self._made[described] = self.of_spec(described.spec)
        return plan

    def of_spec(self, spec: tensor_pb2.Spec) -> Plan:
        """The same, made anew, where only the description's message is there."""
        size, most = sum_itemsize(spec.op, spec.dtype), self._layout.chunk_bytes
        pieces = cut(spec.elements, size, most)
        if self._alone:
            pieces = cut_alone(spec.elements, size, most, self._layout.ranks)
        arithmetic = Arithmetic.of(spec.op, spec.dtype, self._world_size)
        gathers, looks = spec.op == tensor_pb2.OP_GATHER, arithmetic.is_floating_point
        inspects = looks and spec.inspected
        return Plan(arithmetic, pieces, pieces.count, gathers, looks, inspects)


def essence(spec: tensor_pb2.Spec) -> tuple[float, ...]:
    """What the ranks of a node must agree on."""
    tensor = spec.op, spec.dtype, spec.elements, spec.shape_digest, spec.inspected, spec.skips
    wire = spec.wire, spec.ratio, spec.stochastic, spec.seed, spec.identity, spec.feedback
    return (*tensor, *wire, spec.revoked)
