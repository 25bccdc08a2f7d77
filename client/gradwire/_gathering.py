"""The collectives that bring together what is there: broadcast, all_gather, and their kin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwire import _wishes
from gradwire._group import Group, known_as, one, one_list, routed
from gradwire._reducing import together
from gradwire._row import Row
from gradwire._work import Task

if TYPE_CHECKING:
    import torch

    from gradwire._group import Lists, Tensors
    from gradwire._work import Work


class Gathering(Group):
    """See torch.distributed.ProcessGroup."""

    @routed
    def broadcast(self, tensors: Tensors, opts: object = None, **keywords: object) -> Work:
        """The root's tensor, bit by bit, whatever its dtype."""
        tensor = one(tensors, "broadcast")
        root = opts if isinstance(opts, int) else keywords.get("root")
        wishes = _wishes.read(opts, None, root, keywords.get("timeout"))
        row = Row([tensor])
        brings, finish = (0, 0), row.deliver
        if self._session.rank == wishes.root:
            row.fill()
            brings, finish = row.ranges[0], _nothing
        part = self._session.all_gather(row.flat, brings)
        return self._begin(Task("broadcast", [part], [tensor], finish), wishes.seconds)

    @routed
    def allgather(
        self, outputs: Lists, inputs: Tensors, opts: object = None, **keywords: object
    ) -> Work:
        """A list of tensors, one a rank, of any sizes."""
        source = one(inputs, "all_gather")
        seconds = _wishes.seconds(opts, keywords.get("timeout"))
        task = self._gather(one_list(outputs, "all_gather"), source)
        return self._begin(task, seconds)

    @routed
    def all_gather_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        opts: object = None,
        **keywords: object,
    ) -> Work:
        """A tensor with one part a rank, all equal."""
        seconds = _wishes.seconds(opts, keywords.get("timeout"))
        return self._begin(self._gather_single(output, source), seconds)

    @routed
    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: object = None
    ) -> Work:
        """Several of all_gather_single at once."""
        seconds = _wishes.seconds(opts)
        tasks = [
            self._gather_single(output, source)
            for output, source in zip(outputs, inputs, strict=True)
        ]
        task = together("all_gather", tasks, outputs)
        return self._begin(task, seconds)

    @routed
    def allgather_coalesced(
        self,
        output_lists: list[list[torch.Tensor]],
        inputs: list[torch.Tensor],
        opts: object = None,
    ) -> Work:
        """Several of allgather at once; output_lists has one list a rank."""
        seconds = _wishes.seconds(opts)
        tasks = [
            self._gather([each[index] for each in output_lists], source)
            for index, source in enumerate(inputs)
        ]
        outputs = [tensor for each in output_lists for tensor in each]
        task = together("all_gather", tasks, outputs)
        return self._begin(task, seconds)

    # The names of the same in torch before 2.13, which calls them by these, too.
    _allgather_base = known_as("_allgather_base", all_gather_single)
    allgather_into_tensor_coalesced = known_as(
        "allgather_into_tensor_coalesced", all_gather_single_coalesced
    )

    def _gather(self, outputs: list[torch.Tensor], source: torch.Tensor) -> Task:
        session = self._session
        if len(outputs) != session.world_size:
            raise ValueError(
                f"all_gather: expected {session.world_size} output tensors, one a rank, got"
                f" {len(outputs)}"
            )
        if source.numel() != outputs[session.rank].numel():
            raise ValueError(
                f"all_gather: this rank's output has {outputs[session.rank].numel()} elements,"
                f" its input {source.numel()}"
            )
        row = Row(outputs)
        row.put(session.rank, source)
        part = session.all_gather(row.flat, row.ranges[session.rank])
        return Task("all_gather", [part], outputs, row.deliver)

    def _gather_single(self, output: torch.Tensor, source: torch.Tensor) -> Task:
        session = self._session
        if output.dtype != source.dtype:
            raise TypeError(
                f"all_gather: the output is {output.dtype}, the input {source.dtype}"
            )
        if output.numel() != source.numel() * session.world_size:
            raise ValueError(
                f"all_gather: expected an output of {session.world_size} x {source.numel()}"
                f" elements, got {output.numel()}"
            )
        row = Row([output])
        share = row.flat.numel() // session.world_size
        start = share * session.rank
        row.put_at(start, source)
        part = session.all_gather(row.flat, (start, start + share))
        return Task("all_gather", [part], [output], row.deliver)


def _nothing() -> None:
    pass
