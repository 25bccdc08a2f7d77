from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch

from gradwire_ops import query

if TYPE_CHECKING:
    from gradwire import Session
    from gradwire_proto.v1 import aggregator_pb2

InThreads: TypeAlias = Callable[..., list[Any]]

COUNTS = (0, 1, 2, 3, 5)
OPS = ("mean", "sum", "min", "max", "product")


def numbered(session: Session, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with 0, 1, 2 ... in it, plus this rank's number."""
    tensor.copy_(torch.arange(tensor.numel()).reshape(tensor.shape) + session.rank)
    return tensor


def job_of(session: Session) -> aggregator_pb2.JobStatus:
    """This session's job, as its daemon sees it."""
    status = query.status(session.daemon)
    return next(job for job in status.jobs if job.generation == session.generation)


@pytest.mark.case("M24")
@pytest.mark.parametrize("layout", [(4,), (1, 1, 1, 1), (1, 3)])
def test_fewer_elements_than_nodes(
    in_scheduled_threads: InThreads, layout: tuple[int, ...]
) -> None:
    def work(session: Session) -> list[list[float]]:
        tensors = [numbered(session, torch.empty(count)) for count in COUNTS]
        futures = [session.all_reduce(tensor) for tensor in tensors]
        return [future.wait().tolist() for future in futures]

    expected = [[index + 1.5 for index in range(count)] for count in COUNTS]
    assert in_scheduled_threads(layout, work) == [expected] * 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int8])
def test_sizes_around_those_of_chunks(
    in_scheduled_threads: InThreads, dtype: torch.dtype
) -> None:
    chunk = 4096 // dtype.itemsize
    counts = (chunk - 1, chunk, chunk + 1, 2 * chunk, 3 * chunk + 1, 50 * chunk + 7)

    def work(session: Session) -> list[bool]:
        right = []
        for count in counts:
            pattern = torch.arange(count) % 40
            tensor = (pattern + 2 * session.rank).to(dtype)
            session.all_reduce(tensor).wait()
            right.append(torch.equal(tensor, (pattern + 2).to(dtype)))
        return right

    assert in_scheduled_threads((1, 1, 1), work) == [[True] * len(counts)] * 3


@pytest.mark.case("R28")
@pytest.mark.parametrize("switch", ["on", "off"])
def test_sizes_around_the_messages_that_grpc_takes_by_default(
    in_threads: InThreads, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    monkeypatch.setenv("GRADWIRE_SHM", switch)
    default = 4 << 20
    sizes = (default - 64, default - 1, default, default + 1, 3 * default + 64)

    def work(session: Session) -> list[bool]:
        assert session.path == ("shared_memory" if switch == "on" else "stream")
        right = []
        for size in sizes:
            pattern = (torch.arange(size) % 50).to(torch.int8)
            tensor = pattern + session.rank
            session.all_reduce(tensor, "sum").wait()
            right.append(torch.equal(tensor, 2 * pattern + 1))
        return right

    assert in_threads((1, 1), work) == [[True] * len(sizes)] * 2


def test_a_tensor_is_reduced_in_place_whatever_its_strides(in_threads: InThreads) -> None:
    def work(session: Session) -> dict[str, Any]:
        image = torch.empty(1, 2, 3, 4).to(memory_format=torch.channels_last)
        tensors = {
            "transposed": torch.empty(4, 3).t(),
            "strided": torch.empty(10)[::3],
            "part": torch.zeros(5, 5)[1:3, 2:4],
            "scalar": torch.empty(()),
            "channels last": image,
            "empty": torch.empty(2, 0, 3),
            "complex": torch.empty(3, 2, dtype=torch.complex64).t().conj(),
            "parameter": torch.nn.Parameter(torch.empty(2, 2)).detach().requires_grad_(),
        }
        results = {}
        for name, tensor in tensors.items():
            numbered(session, tensor.detach())
            assert session.all_reduce(tensor).wait() is tensor
            results[name] = (tensor - 0.5).tolist()
        return results

    shapes = {
        "transposed": (3, 4),
        "strided": (4,),
        "part": (2, 2),
        "scalar": (),
        "channels last": (1, 2, 3, 4),
        "empty": (2, 0, 3),
        "complex": (2, 3),
        "parameter": (2, 2),
    }
    expected = {
        name: torch.arange(torch.Size(shape).numel()).reshape(shape).tolist()
        for name, shape in shapes.items()
    }
    assert in_threads((1, 1), work) == [expected] * 2


def test_what_lies_around_a_part_of_a_tensor_is_left_alone(in_threads: InThreads) -> None:
    def work(session: Session) -> list[list[float]]:
        whole = torch.full((3, 3), -1.0)
        numbered(session, whole[1:, 1:])
        session.all_reduce(whole[1:, 1:]).wait()
        values: list[list[float]] = whole.tolist()
        return values

    assert in_threads((2,), work) == [[[-1, -1, -1], [-1, 0.5, 1.5], [-1, 2.5, 3.5]]] * 2


@pytest.mark.case("M25")
@pytest.mark.parametrize("op", OPS)
def test_a_world_of_one_gets_back_what_it_brought(in_threads: InThreads, op: str) -> None:
    def work(session: Session) -> tuple[list[float], list[int], int]:
        random = torch.Generator().manual_seed(7)
        tensor = torch.randn(1_000_000, generator=random)
        before = tensor.clone()
        session.all_reduce(tensor, op=op).wait()
        different = (tensor != before).nonzero().flatten().tolist()
        counts = [
            session.all_reduce(torch.ones(count), op=op).wait().numel() for count in COUNTS
        ]
        return different, counts, len(job_of(session).links)

    assert in_threads((1,), work) == [([], list(COUNTS), 0)]


@pytest.mark.case("M25")
def test_ranks_of_one_node_need_no_link(in_threads: InThreads) -> None:
    def work(session: Session) -> tuple[dict[str, set[float]], int]:
        results = {}
        for op in OPS:
            tensor = torch.full((700_001,), session.rank + 1.0)
            results[op] = set(session.all_reduce(tensor, op=op).wait().tolist())
        return results, len(job_of(session).links)

    values = {"mean": 2.5, "sum": 10.0, "min": 1.0, "max": 4.0, "product": 24.0}
    expected = {op: {value} for op, value in values.items()}
    assert in_threads((4,), work) == [(expected, 0)] * 4


def test_nodes_are_linked_each_with_each(in_threads: InThreads) -> None:
    asked = threading.Barrier(2)

    def work(session: Session) -> list[tuple[int, bool, bool]]:
        session.all_reduce(torch.ones(100_000)).wait()
        links = job_of(session).links
        asked.wait(10)
        return [(link.node, link.connected, link.bytes_sent > 0) for link in links]

    results = in_threads((1, 1), work)
    assert results == [[(1, True, True)], [(0, True, True)]]
