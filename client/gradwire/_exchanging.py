"""The collectives that carry tensors from rank to rank: send, gather, all_to_all and others.

Tags of ours are below zero, where users have none: minus the number of the collective.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from gradwire import _wishes
from gradwire._group import Group, known_as, one, one_list, routed
from gradwire._monitored_barrier import Barrier
from gradwire._row import Row, spread
from gradwire._work import Task

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from gradwire._group import Lists, Tensors
    from gradwire._work import Work

    Future = torch.futures.Future[Any]


class Exchanging(Group):
    """See torch.distributed.ProcessGroup."""

    _exchanges = 0

    @routed
    def send(self, tensors: Tensors, to: int, tag: int = 0) -> Work:
        """One tensor to one rank."""
        tensor = one(tensors, "send")
        part = self._send(tensor, to, tag, None)
        return self._begin(Task(f"send to rank {to}", [part], [tensor], timed=True), None)

    @routed
    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> Work:
        """One tensor from one rank."""
        return self._receive_one(one(tensors, "recv"), source, tag)

    @routed
    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        """One tensor from whoever sends one with this tag."""
        return self._receive_one(one(tensors, "recv"), None, tag)

    @routed
    def gather(
        self, outputs: Lists, inputs: Tensors, opts: object = None, **keywords: object
    ) -> Work:
        """Tensors of any sizes, one a rank, to the root."""
        source = one(inputs, "gather")
        wishes = _wishes.read(opts, None, keywords.get("root"), keywords.get("timeout"))
        tag = self._next_tag()
        if self._session.rank != wishes.root:
            part = self._send(source, wishes.root, tag, wishes.seconds)
            return self._begin(Task("gather", [part], timed=True), wishes.seconds)
        targets = one_list(outputs, "gather")
        row = Row(targets)
        row.put(self._session.rank, source)
        parts = [
            self._receive(row.part(rank), rank, tag, wishes.seconds) for rank in self._others()
        ]
        return self._begin(
            Task("gather", parts, targets, row.deliver, timed=True), wishes.seconds
        )

    @routed
    def scatter(
        self, outputs: Tensors, inputs: Lists, opts: object = None, **keywords: object
    ) -> Work:
        """Tensors of any sizes, one a rank, from the root."""
        output = one(outputs, "scatter")
        wishes = _wishes.read(opts, None, keywords.get("root"), keywords.get("timeout"))
        tag = self._next_tag()
        if self._session.rank != wishes.root:
            row = Row([output])
            part = self._receive(row.flat, wishes.root, tag, wishes.seconds)
            return self._begin(
                Task("scatter", [part], [output], row.deliver, timed=True), wishes.seconds
            )
        sources = one_list(inputs, "scatter")
        parts = [
            self._send(sources[rank], rank, tag, wishes.seconds) for rank in self._others()
        ]
        _copy(output, sources[wishes.root])
        return self._begin(Task("scatter", parts, [output], timed=True), wishes.seconds)

    @routed
    def alltoall(
        self,
        outputs: list[torch.Tensor],
        inputs: list[torch.Tensor],
        opts: object = None,
        **keywords: object,
    ) -> Work:
        """A list of tensors for each rank, against a list of one from each."""
        seconds = _wishes.seconds(opts, keywords.get("timeout"))
        return self._begin(self._all_to_all(outputs, inputs, seconds), seconds)

    @routed
    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: object = None,
        **keywords: object,
    ) -> Work:
        """The same with parts of a tensor, along its first dimension; no splits: equal ones."""
        seconds = _wishes.seconds(opts, keywords.get("timeout"))
        targets = self._parts(output, output_splits)
        sources = self._parts(source, input_splits)
        task = self._all_to_all(targets, sources, seconds)
        return self._begin(replace(task, outputs=[output]), seconds)

    # The name of the same in torch before 2.13, which calls it by this, too.
    alltoall_base = known_as("alltoall_base", all_to_all_single)

    def barrier(self, opts: object = None, timeout: timedelta | None = None) -> Work:
        """Done once every rank has come to it."""
        seconds, token = _wishes.seconds(opts, timeout), torch.zeros(1, dtype=torch.int32)
        part = self._session.all_reduce(token, "sum")
        return self._begin(Task("barrier", [part]), seconds)

    def monitored_barrier(
        self,
        timeout: timedelta | None = None,
        wait_all_ranks: bool = False,
    ) -> None:
        """A barrier at which rank 0 names who is missing.

        With wait_all_ranks it names all of them, else the first. Raises RoundTimeoutError.
        """
        seconds = self._seconds if timeout is None else timeout.total_seconds()
        barrier = Barrier(self._session, self._next_tag(), seconds)
        barrier.pass_through(name_all=wait_all_ranks)

    # -- one letter

    def _send(self, tensor: torch.Tensor, to: int, tag: int, own: float | None) -> Future:
        flat = Row([tensor]).fill().flat
        return self._session.send(flat, to, tag, self._letter_seconds(own))

    def _receive(
        self, flat: torch.Tensor, source: int | None, tag: int, own: float | None
    ) -> Future:
        return self._session.receive(flat, source, tag, self._letter_seconds(own))

    def _receive_one(self, tensor: torch.Tensor, source: int | None, tag: int) -> Work:
        row = Row([tensor])
        part = self._receive(row.flat, source, tag, None)
        name = "recv from any rank" if source is None else f"recv from rank {source}"
        task = Task(name, [part], [tensor], row.deliver, timed=True, received=True)
        return self._begin(task, None)

    def _letter_seconds(self, own: float | None) -> float:
        return self._limit(own)[0]

    # -- many

    def _all_to_all(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        seconds: float | None,
    ) -> Task:
        rank, tag = self._session.rank, self._next_tag()
        rows = [Row([output]) for output in outputs]
        # Nobody sends what has no elements, nor waits for it.
        parts = [
            self._receive(rows[other].flat, other, tag, seconds)
            for other in self._others()
            if outputs[other].numel()
        ]
        parts += [
            self._send(inputs[other], other, tag, seconds)
            for other in self._others()
            if inputs[other].numel()
        ]
        _copy(outputs[rank], inputs[rank])

        def finish() -> None:
            for other in self._others():
                rows[other].deliver()

        return Task("all_to_all", parts, outputs, finish, timed=True)

    def _parts(self, tensor: torch.Tensor, splits: Sequence[int]) -> list[torch.Tensor]:
        if splits:
            return list(tensor.split(list(splits)))
        share, rest = divmod(tensor.shape[0], self._session.world_size)
        if rest:
            raise ValueError(
                f"all_to_all: the first dimension, {tensor.shape[0]}, does not divide equally"
                f" among {self._session.world_size} ranks"
            )
        return [
            tensor[share * rank : share * (rank + 1)]
            for rank in range(self._session.world_size)
        ]

    def _others(self) -> list[int]:
        """The other ranks; each begins with the one after itself, so none is asked by all."""
        rank, world_size = self._session.rank, self._session.world_size
        return [(rank + step) % world_size for step in range(1, world_size)]

    def _next_tag(self) -> int:
        self._exchanges += 1
        return -self._exchanges


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    spread(Row([source]).fill().flat, target)
