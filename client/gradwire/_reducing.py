"""The collectives that add up: all_reduce, reduce, reduce_scatter, and their kin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gradwire import _sparse, _wishes
from gradwire._group import Group, known_as, one, one_list, routed
from gradwire._order import overlap
from gradwire._row import Row, spread
from gradwire._tensor import check_op
from gradwire._wishes import Wishes
from gradwire._work import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gradwire._group import Lists, Tensors
    from gradwire._order import Range
    from gradwire._work import Work


class Reducing(Group):
    """See torch.distributed.ProcessGroup."""

    @routed
    def allreduce(self, tensors: Tensors, opts: object = None, **keywords: object) -> Work:
        """One tensor, dense, or sparse with SUM; in place."""
        tensor = one(tensors, "all_reduce")
        wishes = _read(opts, keywords)
        if tensor.layout != torch.strided:
            task = _sparse.all_reduce(self._session, tensor, wishes, self._wait_for)
            return self._begin(task, wishes.seconds)
        return self._all_reduce([tensor], wishes)

    def weighted_mean(self, tensor: torch.Tensor, weight: float) -> Work:
        """See gradwire.weighted_mean. Raises TypeError for another backend's tensor."""
        if self._routes.other(tensor.device) is not None:
            raise TypeError(
                f"a weighted mean needs a tensor that grpc reduces, got one on {tensor.device}"
            )
        return self._all_reduce([tensor], Wishes("mean", weight=weight))

    @routed
    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: object = None) -> Work:
        """Several tensors; those of one dtype travel as one."""
        return self._all_reduce(tensors, _read(opts, {}))

    @routed
    def reduce(self, tensors: Tensors, opts: object = None, **keywords: object) -> Work:
        """The root's tensor gets the result; the others' stay as they are."""
        tensor = one(tensors, "reduce")
        wishes = _read(opts, keywords)
        row = _scaled([tensor], wishes, own=wishes.factor is not None)
        mine = row.ranges[0] if self._session.rank == wishes.root else (0, 0)
        part = self._session.reduce_scatter(row.flat, mine, wishes.op)
        finish = row.deliver if self._session.rank == wishes.root else None
        return self._begin(Task("reduce", [part], [tensor], finish), wishes.seconds)

    @routed
    def reduce_scatter(
        self, outputs: Tensors, inputs: Lists, opts: object = None, **keywords: object
    ) -> Work:
        """A list of tensors, one a rank, of any sizes."""
        output = one(outputs, "reduce_scatter")
        wishes = _read(opts, keywords)
        whole = _scaled(one_list(inputs, "reduce_scatter"), wishes, own=False)
        task = self._scatter(output, whole, whole.ranges[self._session.rank], wishes)
        return self._begin(task, wishes.seconds)

    @routed
    def reduce_scatter_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: object = None
    ) -> Work:
        """A tensor with one part a rank, all equal."""
        wishes = _read(opts, {})
        return self._begin(self._scatter_single(output, source, wishes), wishes.seconds)

    @routed
    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: object = None
    ) -> Work:
        """Several of reduce_scatter_single at once."""
        wishes = _read(opts, {})
        tasks = [
            self._scatter_single(output, source, wishes)
            for output, source in zip(outputs, inputs, strict=True)
        ]
        return self._begin(together("reduce_scatter", tasks, outputs), wishes.seconds)

    # The names of the same in torch before 2.13, which calls them by these, too.
    _reduce_scatter_base = known_as("_reduce_scatter_base", reduce_scatter_single)
    reduce_scatter_tensor_coalesced = known_as(
        "reduce_scatter_tensor_coalesced", reduce_scatter_single_coalesced
    )

    def _all_reduce(self, tensors: list[torch.Tensor], wishes: Wishes) -> Work:
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        for tensor in tensors:
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
        tasks = [self._reduce_alike(alike, wishes) for alike in by_dtype.values()]
        return self._begin(together("all_reduce", tasks, tensors), wishes.seconds)

    def _reduce_alike(self, tensors: list[torch.Tensor], wishes: Wishes) -> Task:
        if len(tensors) == 1 and tensors[0].device.type == "cpu":
            # As it is: the session compares the ranks' shapes.
            tensor = tensors[0]
            if wishes.factor is not None:
                tensor.detach().mul_(wishes.factor)
            part = self._session.all_reduce(tensor, wishes.op, wishes.weight)
            return Task("all_reduce", [part])
        row = _scaled(tensors, wishes, own=False)
        part = self._session.all_reduce(row.flat, wishes.op, wishes.weight)
        return Task("all_reduce", [part], finish=row.deliver)

    def _scatter_single(
        self, output: torch.Tensor, source: torch.Tensor, wishes: Wishes
    ) -> Task:
        world_size = self._session.world_size
        if source.numel() != output.numel() * world_size:
            raise ValueError(
                f"reduce_scatter: expected an input of {world_size} x {output.numel()}"
                f" elements, got {source.numel()}"
            )
        whole = _scaled([source], wishes, own=False)
        share = whole.ranges[0][1] // world_size
        start = share * self._session.rank
        return self._scatter(output, whole, (start, start + share), wishes)

    def _scatter(
        self, output: torch.Tensor, whole: Row, takes: tuple[int, int], wishes: Wishes
    ) -> Task:
        place, finish = _place(output, whole.flat, takes)
        future = self._session.reduce_scatter(whole.flat, takes, wishes.op, out=place)
        return Task("reduce_scatter", [future], [output], finish)


def _place(
    output: torch.Tensor, source: torch.Tensor, takes: Range
) -> tuple[torch.Tensor, Callable[[], None] | None]:
    """Where the session is to write what becomes the output, and what brings it there."""
    part = source[takes[0] : takes[1]]
    row = Row([output])
    shared = not row.is_copy and overlap(row.flat, source)
    in_place = shared and row.flat.data_ptr() == part.data_ptr()
    fits = row.flat.dtype == source.dtype and row.flat.numel() == part.numel()
    if fits and (in_place or not shared):
        return row.flat, row.deliver
    copy = torch.empty_like(part)
    return copy, lambda: spread(copy, output)


def together(name: str, tasks: Sequence[Task], outputs: Sequence[Any]) -> Task:
    """Several tasks as one."""
    parts = [part for task in tasks for part in task.parts]
    finishes = [task.finish for task in tasks if task.finish is not None]
    if len(finishes) < 2:
        return Task(name, parts, outputs, finishes[0] if finishes else None)
    return Task(name, parts, outputs, lambda: _all(finishes))


def _all(finishes: Sequence[Callable[[], None]]) -> None:
    for finish in finishes:
        finish()


def _read(opts: object, keywords: dict[str, object]) -> Wishes:
    plain = not hasattr(opts, "reduceOp") and opts is not None
    op = opts if plain else keywords.get("op")
    options = None if plain else opts
    return _wishes.read(options, op, keywords.get("root"), keywords.get("timeout"))


def _scaled(tensors: list[torch.Tensor], wishes: Wishes, *, own: bool) -> Row:
    """The tensors in a row, multiplied with what the caller wishes.

    Raises TypeError for an operation that complex numbers don't have: in the row, their parts
    would pass for numbers.
    """
    for tensor in tensors:
        check_op(wishes.op, tensor.dtype)
    row = Row(tensors, own=own or wishes.factor is not None).fill_all()
    if wishes.factor is not None:
        row.flat.mul_(wishes.factor)
    return row
