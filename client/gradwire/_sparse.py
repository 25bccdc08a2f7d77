"""The sum of sparse tensors: what every rank has is gathered, and added up by each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gradwire._work import Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradwire._session import Session
    from gradwire._wishes import Wishes


def all_reduce(
    session: Session,
    tensor: torch.Tensor,
    wishes: Wishes,
    wait: Callable[[Task, float | None], None],
) -> Task:
    """Sum a sparse COO tensor in place. Waits for the ranks' numbers of entries, with `wait`.

    Raises what that raises, and NotImplementedError for another layout, device or operation.
    """
    if tensor.layout != torch.sparse_coo or tensor.device.type != "cpu":
        raise NotImplementedError(
            f"all_reduce takes no tensor with layout {tensor.layout} on {tensor.device}; use"
            " sparse=False in the embedding, or tensor.to_dense()"
        )
    if wishes.op not in ("sum", "mean") or wishes.factor is not None:
        raise NotImplementedError(
            f"all_reduce of a sparse tensor sums, and does no {wishes.op}: tensor.to_dense()"
        )
    mine = tensor.detach().coalesce()
    numbers, told = _count(session, mine.indices().shape[1])
    wait(Task("all_reduce", [told]), wishes.seconds)
    counts = [int(number) for number in numbers]
    indices = _gather(session, mine.indices().t(), counts)
    values = _gather(session, mine.values(), counts)

    def finish() -> None:
        total = _add_up(mine, indices[0].t(), values[0], counts)
        if wishes.op == "mean":
            total /= session.world_size
        # detach() makes another sparse tensor, whose new entries this one would not get.
        with torch.no_grad():
            tensor.copy_(total)

    return Task("all_reduce", [indices[1], values[1]], [tensor], finish)


def _count(
    session: Session, entries: int
) -> tuple[torch.Tensor, torch.futures.Future[torch.Tensor]]:
    """The ranks' numbers of entries."""
    counts = torch.zeros(session.world_size, dtype=torch.int64)
    counts[session.rank] = entries
    return counts, session.all_gather(counts, (session.rank, session.rank + 1))


def _gather(
    session: Session, rows: torch.Tensor, counts: list[int]
) -> tuple[torch.Tensor, torch.futures.Future[torch.Tensor]]:
    """All ranks' rows, one after the other."""
    whole = rows.new_empty((sum(counts), *rows.shape[1:]))
    start = sum(counts[: session.rank])
    whole[start : start + counts[session.rank]] = rows
    width = whole[0].numel() if sum(counts) else 0
    flat = whole.view(-1)
    stop = start + counts[session.rank]
    return whole, session.all_gather(flat, (start * width, stop * width))


def _add_up(
    like: torch.Tensor, indices: torch.Tensor, values: torch.Tensor, counts: list[int]
) -> torch.Tensor:
    """The sum over the ranks, in their order: the same bits everywhere."""
    total = torch.zeros_like(like)
    start = 0
    for count in counts:
        part = slice(start, start + count)
        each = torch.sparse_coo_tensor(
            indices[:, part], values[part], like.shape, is_coalesced=True, check_invariants=True
        )
        total = (total + each).coalesce()
        start += count
    return total
