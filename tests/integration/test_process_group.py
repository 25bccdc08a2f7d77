"""The backend "grpc": every collective of torch.distributed, on one node and on two."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import gradwire

if TYPE_CHECKING:
    from collections.abc import Callable

InGroups: TypeAlias = "Callable[..., list[Any]]"

LAYOUTS = [[3], [2, 1]]

layouts = pytest.mark.parametrize("layout", LAYOUTS, ids=["one-node", "two-nodes"])


def same(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


# -- what adds up


def reduced_by(group: dist.ProcessGroup, name: str) -> list[Any]:
    tensor = torch.tensor([1, 2, 3]) * (group.rank() + 1)
    dist.all_reduce(tensor, getattr(ReduceOp, name))
    return tensor.tolist()


@layouts
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SUM", [6, 12, 18]),
        ("AVG", [2, 4, 6]),
        ("PRODUCT", [6, 48, 162]),
        ("MIN", [1, 2, 3]),
        ("MAX", [3, 6, 9]),
        ("BAND", [0, 0, 0]),
        ("BOR", [3, 6, 15]),
        ("BXOR", [0, 0, 12]),
    ],
)
def test_all_reduce_knows_every_operation(
    in_groups: InGroups, layout: list[int], name: str, expected: list[int]
) -> None:
    assert in_groups(layout, reduced_by, name) == [expected] * 3


def scaled_first(group: dist.ProcessGroup) -> list[float]:
    operation = dist._make_nccl_premul_sum(0.5)  # noqa: SLF001 - torch has no other door
    tensor = torch.full((4,), float(group.rank() + 1))
    dist.all_reduce(tensor, operation)
    return tensor.tolist()


def test_premul_sum_multiplies_before_it_adds(in_groups: InGroups) -> None:
    assert in_groups([2, 1], scaled_first) == [[3.0] * 4] * 3


def coalesced(group: dist.ProcessGroup) -> list[list[float]]:
    one, two = torch.ones(3), torch.full((2, 2), 2.0).t()
    with dist._coalescing_manager(group=group):  # noqa: SLF001 - FSDP uses it
        dist.all_reduce(one)
        dist.all_reduce(two)
    outputs = [torch.empty(3), torch.empty(6)]
    with dist._coalescing_manager(group=group):  # noqa: SLF001 - as above
        dist.all_gather_single(outputs[0], torch.tensor([float(group.rank())]))
        dist.all_gather_single(outputs[1], torch.tensor([float(group.rank())] * 2))
    shares = [torch.empty(1), torch.empty(2)]
    with dist._coalescing_manager(group=group):  # noqa: SLF001 - as above
        dist.reduce_scatter_single(shares[0], torch.arange(3.0))
        dist.reduce_scatter_single(shares[1], torch.arange(6.0))
    return [each.flatten().tolist() for each in (one, two, *outputs, *shares)]


def break_off(group: dist.ProcessGroup) -> None:
    device = torch.device("cpu")
    with dist._coalescing_manager(group=group, device=device):  # noqa: SLF001 - as above
        group.barrier()
        raise ZeroDivisionError


def broken_off(group: dist.ProcessGroup) -> int:
    with pytest.raises(ZeroDivisionError):
        break_off(group)
    for _ in range(100):
        group.allreduce([torch.ones(1)]).wait()
    coalesced: Any = group
    return len(coalesced._coalesced)  # noqa: SLF001 - what is kept is not to be seen otherwise


def test_a_block_that_is_broken_off_keeps_nothing_of_what_comes_after(
    in_groups: InGroups,
) -> None:
    assert max(in_groups([2], broken_off)) <= 2


@layouts
def test_coalesced_collectives_give_what_single_ones_do(
    in_groups: InGroups, layout: list[int]
) -> None:
    for rank, found in enumerate(in_groups(layout, coalesced)):
        assert found[:2] == [[3.0] * 3, [6.0] * 4]
        assert found[2:4] == [[0.0, 1.0, 2.0], [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]]
        assert found[4:] == [[3.0 * rank], [6.0 * rank, 6.0 * rank + 3]]


def scattered(group: dist.ProcessGroup) -> None:
    rank, size = group.rank(), group.size()
    source = torch.arange(size * 4.0).view(size, 4)
    kept, output = source.clone(), torch.empty(4)
    dist.reduce_scatter_single(output, source)
    same(output, size * kept[rank])
    same(source, kept)
    uneven = [torch.full((each + 1,), float(each)) for each in range(size)]
    output = torch.empty(rank + 1)
    dist.reduce_scatter(output, uneven, ReduceOp.AVG)
    same(output, torch.full((rank + 1,), float(rank)))
    tensor = torch.full((3, 2), 1.0 + rank).t()
    dist.reduce(tensor, 1)
    same(tensor, torch.full((2, 3), 6.0 if rank == 1 else 1.0 + rank))


@layouts
def test_reduce_scatter_and_reduce_leave_the_inputs_alone(
    in_groups: InGroups, layout: list[int]
) -> None:
    in_groups(layout, scattered)


def scattered_at_once(group: dist.ProcessGroup) -> None:
    rank, size = group.rank(), group.size()
    source = torch.arange(size * 50_000.0)
    kept, share = source.clone(), source.numel() // size
    mine = kept[rank * share :][:share]
    outputs = [torch.empty(share), torch.empty(share).to(torch.float64), torch.empty(2 * share)]
    targets = [outputs[0], outputs[1], outputs[2][::2]]
    works = [dist.reduce_scatter_single(each, source, async_op=True) for each in targets]
    for work, target in zip(works, targets, strict=True):
        assert work is not None
        work.wait()
        same(target, (size * mine).to(target.dtype))
    same(source, kept)
    # Where the output lies in the input, in its place or in another.
    for first in (rank * share, (rank + 1) % size * share):
        shared = kept.clone()
        dist.reduce_scatter_single(shared[first : first + share], shared)
        same(shared[first : first + share], size * mine)
        shared[first : first + share] = kept[first : first + share]
        same(shared, kept)
    with pytest.raises(gradwire.MismatchError):
        dist.reduce_scatter_single(
            torch.empty(share + rank), torch.cat([source, torch.ones(size * rank)])
        )
    same(source, kept)


@layouts
def test_one_input_may_be_scattered_twice_at_once_and_into_itself(
    in_groups: InGroups, layout: list[int]
) -> None:
    in_groups(layout, scattered_at_once)


# -- what brings together


def gathered(group: dist.ProcessGroup, dtype: torch.dtype) -> None:
    rank, size = group.rank(), group.size()
    expected = [torch.arange(each + 2).to(dtype) for each in range(size)]
    outputs = [torch.zeros(each + 2).to(dtype) for each in range(size)]
    dist.all_gather(outputs, expected[rank])
    for output, each in zip(outputs, expected, strict=True):
        assert torch.equal(output.view(torch.uint8), each.view(torch.uint8))
    tensor = expected[1].clone() if rank == 1 else torch.zeros(3).to(dtype)
    dist.broadcast(tensor, 1)
    assert torch.equal(tensor.view(torch.uint8), expected[1].view(torch.uint8))


@layouts
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bool, torch.complex64, torch.float8_e4m3fn], ids=str
)
def test_all_gather_and_broadcast_carry_every_dtype_in_uneven_sizes(
    in_groups: InGroups, layout: list[int], dtype: torch.dtype
) -> None:
    in_groups(layout, gathered, dtype)


def exchanged(group: dist.ProcessGroup) -> None:
    rank, size = group.rank(), group.size()
    gathered = [torch.empty(each + 1) for each in range(size)] if rank == 2 else None
    dist.gather(torch.full((rank + 1,), float(rank)), gathered, dst=2)
    for each, tensor in enumerate(gathered or []):
        same(tensor, torch.full((each + 1,), float(each)))
    output = torch.empty(3)
    inputs = [torch.full((3,), 7.0 + each) for each in range(size)] if rank == 1 else None
    dist.scatter(output, inputs, src=1)
    same(output, torch.full((3,), 7.0 + rank))
    outputs = [torch.empty(2) for _ in range(size)]
    dist.all_to_all(outputs, [torch.full((2,), 10.0 * rank + each) for each in range(size)])
    for each, tensor in enumerate(outputs):
        same(tensor, torch.full((2,), 10.0 * each + rank))
    # Rank r sends `each` rows to each rank: none to rank 0.
    source, target = torch.full((sum(range(size)), 2), float(rank)), torch.empty(rank * size, 2)
    dist.all_to_all_single(target, source, [rank] * size, list(range(size)))
    same(target, torch.arange(float(size)).repeat_interleave(rank)[:, None].expand(-1, 2))


@layouts
def test_gather_scatter_and_all_to_all_bring_each_tensor_to_its_rank(
    in_groups: InGroups, layout: list[int]
) -> None:
    in_groups(layout, exchanged)


def sent(group: dist.ProcessGroup) -> None:
    rank, size = group.rank(), group.size()
    right, left = (rank + 1) % size, (rank - 1) % size
    got = torch.empty(5)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.full((5,), float(rank)), right),
            dist.P2POp(dist.irecv, got, left),
        ]
    )
    for work in works:
        work.wait()
    same(got, torch.full((5,), float(left)))
    if rank == 0:
        sources = [dist.recv(got, tag=3) for _ in range(size - 1)]
        assert sorted(sources) == [1, 2]
    else:
        dist.send(torch.full((5,), float(rank)), 0, tag=3)
    # A transposed tensor has to be copied on both sides.
    if rank == 1:
        dist.send(torch.arange(6.0).view(2, 3).t(), 2)
    elif rank == 2:
        target = torch.empty(2, 3).t()
        dist.recv(target, 1)
        same(target, torch.arange(6.0).view(2, 3).t())


@layouts
def test_send_and_recv_pair_by_rank_and_tag(in_groups: InGroups, layout: list[int]) -> None:
    in_groups(layout, sent)


def objects(group: dist.ProcessGroup) -> None:
    everyone: list[Any] = [None] * group.size()
    dist.all_gather_object(everyone, {"rank": group.rank(), "text": "x" * 100 * group.rank()})
    assert [each["rank"] for each in everyone] == [0, 1, 2]
    words = ["one", 2, None] if group.rank() == 1 else [None] * 3
    dist.broadcast_object_list(words, src=1)
    assert words == ["one", 2, None]


def test_objects_are_gathered_and_broadcast(in_groups: InGroups) -> None:
    in_groups([2, 1], objects)


# -- the work object


def asked(group: dist.ProcessGroup) -> None:
    tensor = torch.ones(4)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    chained = work.get_future().then(lambda done: done.value()[0] * 2)
    assert work.wait(timedelta(seconds=20))
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    same(chained.wait(), torch.full((4,), 6.0))
    late = dist.all_gather([torch.empty(1) for _ in range(3)], torch.ones(1), async_op=True)
    assert late is not None
    assert [each.item() for each in late.get_future().wait()] == [1.0, 1.0, 1.0]
    dist.barrier()


@pytest.mark.case("E01")
def test_works_can_be_waited_for_asked_and_chained_to(in_groups: InGroups) -> None:
    in_groups([2, 1], asked)


def refused(group: dist.ProcessGroup) -> None:
    imaginary = torch.full((4,), 1j).view(2, 2).t()
    for op in (ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX):
        match = pytest.raises(TypeError, match=r"has no meaning for torch\.complex64")
        with match:
            group.allreduce_coalesced([imaginary], op)
        with match:
            group.reduce(imaginary[0], root=0, op=op)
        with match:
            group.reduce_scatter(imaginary[0], [*imaginary], op=op)
    with pytest.raises(NotImplementedError, match="split_group"):
        group.split_group([0, 1])
    with pytest.raises(NotImplementedError, match=r"layout torch\.sparse_csr"):
        dist.all_reduce(torch.eye(3).to_sparse_csr())


@pytest.mark.case("E01")
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_what_there_is_not_is_refused_by_name(in_groups: InGroups) -> None:
    in_groups([2], refused)


# -- groups


def overlapping(group: dist.ProcessGroup) -> None:
    rank = group.rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([1, 2]), dist.new_group([0, 2])]
    mine = [pair for pair in pairs if dist.get_rank(pair) >= 0]
    tensors = [torch.full((1000,), float(rank)) for _ in mine]
    works = [
        dist.all_reduce(tensor, group=pair, async_op=True)
        for tensor, pair in zip(tensors, mine, strict=True)
    ]
    for work in reversed(works):
        assert work is not None
        work.wait()
    sums = [tensor[0].item() for tensor in tensors]
    assert sums == {0: [1.0, 2.0], 1: [1.0, 3.0], 2: [3.0, 2.0]}[rank]
    alone = [dist.new_group([each]) for each in range(3)][rank]
    lonely = torch.full((2,), 5.0)
    dist.all_reduce(lonely, group=alone)
    same(lonely, torch.full((2,), 5.0))
    dist.destroy_process_group(mine[0])
    dist.barrier()


@layouts
def test_groups_overlap_and_are_in_flight_together(
    in_groups: InGroups, layout: list[int]
) -> None:
    in_groups(layout, overlapping)


def made_again(group: dist.ProcessGroup) -> None:
    rank, size = group.rank(), group.size()
    meeting = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no other
    for _ in range(3):
        dist.destroy_process_group()
        dist.init_process_group("cpu:grpc", store=meeting, rank=rank, world_size=size)
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        same(tensor, torch.full((2,), float(size)))
    assert dist.group.WORLD is not None
    assert dist.group.WORLD.name() == "grpc"


def test_a_group_is_destroyed_and_made_again_with_the_same_store(in_groups: InGroups) -> None:
    in_groups([2, 1], made_again)


def named(group: dist.ProcessGroup) -> tuple[str, str]:
    inner = dist.new_group(group_desc="halves")
    return inner.group_name, inner.group_desc


def test_a_group_knows_its_name_and_what_it_is_for(in_groups: InGroups) -> None:
    for name, description in in_groups([2], named):
        assert name
        assert description == "halves"
