"""The contract on numbers, on buffers as the engine passes them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire_proto.chunks import share_ranges
from gradwire_proto.dtypes import BY_NAME, OPS
from gradwire_server.kernels import LONE_INLINE_BYTES, ChunkSum, Kernels
from gradwire_server.round import Spec

Vector: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

FLOATS = ["float16", "bfloat16", "float32", "float64"]
NUMERIC_OPS = ["sum", "mean", "min", "max", "product"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8"]


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def raw(tensor: torch.Tensor) -> memoryview:
    return memoryview(bytearray(tensor.view(torch.uint8).numpy().tobytes()))


class Here:
    """A place whose result is a tensor of the test's; the sum, too, where the types agree."""

    def __init__(self, result: torch.Tensor) -> None:
        self._result = result

    def total(self, size: int) -> memoryview:
        own = self.result(self._result.nbytes)
        return own if size == own.nbytes else memoryview(bytearray(size))

    def result(self, size: int) -> memoryview:
        assert size == self._result.nbytes
        return self._result.view(torch.uint8).numpy().data


def make(like: torch.Tensor, op: str, shares: int, world: int) -> tuple[ChunkSum, torch.Tensor]:
    result = torch.empty_like(like)
    spec = Spec(OPS[op], BY_NAME[name(like.dtype)], like.numel(), 0)
    place = Here(result)
    ranges = share_ranges(shares, like.numel())
    return ChunkSum(spec, place, like.numel(), ranges, world), result


def reduce_nodes(
    nodes: list[list[torch.Tensor]], op: str = "mean", weights: list[float] | None = None
) -> torch.Tensor:
    """All nodes' ranks, as the ring would add them: node after node, one share."""
    world = sum(map(len, nodes))
    left = list(weights or [1.0] * world)
    sums = []
    for ranks in nodes:
        total, result = make(ranks[0], op, 1, world)
        total.add_local([raw(rank) for rank in ranks], [left.pop(0) for _ in ranks])
        sums.append((total, result))
    total, result = sums[-1]
    for other, _ in sums[:-1]:
        total.add(0, [other.partial(0)], other.weights[0])
    total.finish(0)
    return result


def reduce(
    ranks: list[torch.Tensor], op: str = "mean", weights: list[float] | None = None
) -> torch.Tensor:
    return reduce_nodes([ranks], op, weights)


def full(value: float, dtype: torch.dtype, elements: int = 5) -> torch.Tensor:
    return torch.full((elements,), value, dtype=dtype)


@pytest.mark.case("M05")
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_mean_is_over_ranks_and_not_over_nodes(dtype: str) -> None:
    one, two, three, ten = (full(v, getattr(torch, dtype)) for v in (1, 2, 3, 10))
    assert reduce_nodes([[one, two, three], [ten]]).tolist() == [4.0] * 5
    assert reduce_nodes([[ten], [one, two], [three]]).tolist() == [4.0] * 5


@pytest.mark.case("M06")
@pytest.mark.parametrize("value", [40000.0, 2.0**-24, -65504.0])
@pytest.mark.parametrize("ranks", [1, 4, 8, 7])
def test_fp16_neither_overflows_nor_underflows_on_the_way(value: float, ranks: int) -> None:
    nodes = [[full(value, torch.float16)] * ranks] * 2
    assert reduce_nodes(nodes).tolist() == [value] * 5


@pytest.mark.case("M06")
@pytest.mark.parametrize("ranks", [1, 2, 3, 9])
def test_a_mean_of_the_largest_fp32_numbers_is_finite(ranks: int) -> None:
    value = full(3e38, torch.float32)
    assert torch.allclose(reduce([value] * ranks), value, rtol=1e-6)
    assert torch.allclose(reduce_nodes([[value] * ranks] * 2), value, rtol=1e-6)


@pytest.mark.case("M07")
@pytest.mark.parametrize("position", range(8))
def test_bf16_is_rounded_once_whichever_rank_holds_the_large_number(position: int) -> None:
    ranks = [full(256.0 if rank == position else 1.0, torch.bfloat16) for rank in range(8)]
    assert reduce(ranks).tolist() == [33.0] * 5
    assert reduce_nodes([ranks[:2], ranks[2:4], ranks[4:6], ranks[6:]]).tolist() == [33.0] * 5


@given(ranks=st.integers(1, 9), elements=st.integers(0, 300), seed=st.integers(0, 2**32 - 1))
def test_an_fp32_mean_has_the_bits_of_a_sum_in_order_divided_once(
    ranks: int, elements: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    scale = 10.0 ** draw.uniform(-9, 9, (ranks, elements))
    vectors = (draw.standard_normal((ranks, elements)) * scale).astype(np.float32)
    total = vectors[0].copy()
    for vector in vectors[1:]:
        total += vector
    got = reduce([torch.tensor(vector.tolist(), dtype=torch.float32) for vector in vectors])
    assert got.numpy().tobytes() == (total / np.float32(ranks)).tobytes()


@given(ranks=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
def test_an_fp64_mean_is_summed_in_fp64(ranks: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).standard_normal((ranks, 50))
    total = vectors[0].copy()
    for vector in vectors[1:]:
        total += vector
    got = reduce([torch.tensor(vector.tolist(), dtype=torch.float64) for vector in vectors])
    assert got.numpy().tobytes() == (total / ranks).tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
def test_weights_count(dtype: str) -> None:
    four, eight = full(4, getattr(torch, dtype)), full(8, getattr(torch, dtype))
    assert reduce([four, eight], weights=[1, 3]).tolist() == [7.0] * 5
    assert reduce_nodes([[four], [eight]], weights=[1, 3]).tolist() == [7.0] * 5
    assert reduce([four, eight], weights=[0.125, 0.375]).tolist() == [7.0] * 5


def test_weights_do_not_touch_a_sum() -> None:
    assert reduce([full(4, torch.float32)] * 2, "sum", [1, 3]).tolist() == [8.0] * 5


@pytest.mark.case("M22")
@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_mean_of_integers_is_exact_and_truncated(dtype: str) -> None:
    of = [full(v, getattr(torch, dtype)) for v in (1, 2, 4)]
    assert reduce(of).tolist() == [2] * 5
    assert reduce_nodes([of[:1], of[1:]]).tolist() == [2] * 5


def test_a_mean_of_negative_integers_is_truncated_toward_zero() -> None:
    assert reduce([full(v, torch.int64) for v in (-1, -2, -4)]).tolist() == [-2] * 5
    assert reduce([full(v, torch.int64) for v in (-1, 0)]).tolist() == [0] * 5


def test_a_mean_of_small_integers_does_not_wrap_around() -> None:
    assert reduce([full(100, torch.int8)] * 2).tolist() == [100] * 5
    assert reduce_nodes([[full(255, torch.uint8)] * 3] * 2).tolist() == [255] * 5


def test_a_mean_of_int64_is_exact_where_a_double_is_not() -> None:
    ranks = [full(0, torch.int64) + 2**53 + 1] * 2
    assert reduce(ranks).tolist() == [2**53 + 1] * 5


def test_a_sum_of_integers_wraps_around_as_torchs_does() -> None:
    assert reduce([full(100, torch.int8)] * 2, "sum").tolist() == [-56] * 5
    assert reduce_nodes([[full(200, torch.uint8)]] * 2, "sum").tolist() == [144] * 5


@pytest.mark.case("M22")
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize(
    ("op", "expected"), [("sum", 12), ("min", 1), ("max", 8), ("product", 24), ("mean", 4)]
)
def test_every_op_and_dtype(op: str, expected: int, dtype: str) -> None:
    ranks = [full(value, getattr(torch, dtype)) for value in (3, 8, 1)]
    result = reduce_nodes([ranks[:1], ranks[1:]], op)
    assert (result.dtype, result.tolist()) == (ranks[0].dtype, [expected] * 5)


@pytest.mark.parametrize("op", NUMERIC_OPS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_at_its_element(op: str, value: float) -> None:
    ranks = [torch.ones(9) for _ in range(4)]
    ranks[3][7] = value
    result = reduce_nodes([ranks[:2], ranks[2:]], op)
    others = torch.cat([result[:7], result[8:]])
    assert others.isfinite().all()
    if value != value:
        assert result[7].isnan()
    elif (op, value) not in {("min", float("inf")), ("max", float("-inf"))}:
        assert result[7] == value


def test_opposite_infinities_make_a_nan_of_their_own_element_only() -> None:
    ranks = [torch.ones(9) for _ in range(2)]
    ranks[0][7], ranks[1][7] = float("inf"), float("-inf")
    result = reduce_nodes([ranks[:1], ranks[1:]])
    assert result.isnan().tolist() == [index == 7 for index in range(9)]


@pytest.mark.case("M24")
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize("op", NUMERIC_OPS)
def test_a_chunk_of_no_elements_has_an_empty_result(dtype: str, op: str) -> None:
    empty = torch.empty(0, dtype=getattr(torch, dtype))
    assert reduce_nodes([[empty, empty], [empty]], op).numel() == 0


@pytest.mark.case("M24")
@pytest.mark.parametrize("elements", range(4))
def test_shares_without_elements_are_added_and_stored_like_others(elements: int) -> None:
    mine, _ = make(torch.ones(elements), "mean", 4, 2)
    yours, result = make(torch.ones(elements), "mean", 4, 2)
    mine.add_local([raw(full(1, torch.float32, elements))], [1.0])
    yours.add_local([raw(full(4, torch.float32, elements))], [1.0])
    for share in range(4):
        mine.add(share, [yours.partial(share)], yours.weights[share])
        mine.finish(share)
        assert mine.final(share).nbytes == mine.final_bytes(share)
        yours.store(share, [mine.final(share)])
    assert result.tolist() == [2.5] * elements


@pytest.mark.parametrize(("dtype", "op", "size"), [
    ("bfloat16", "mean", 4), ("bfloat16", "max", 2), ("int8", "mean", 8), ("int8", "sum", 1),
])  # fmt: skip
def test_a_share_travels_in_the_type_that_loses_nothing(dtype: str, op: str, size: int) -> None:
    tensor = full(1, getattr(torch, dtype), 7)
    total, _ = make(tensor, op, 2, 1)
    total.add_local([raw(tensor)], [1.0])
    assert [total.partial_bytes(share) for share in (0, 1)] == [3 * size, 4 * size]
    assert [total.partial(share).nbytes for share in (0, 1)] == [3 * size, 4 * size]
    assert total.final_bytes(1) == 4 * tensor.itemsize


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_what_the_ranks_brought_is_never_written_to(dtype: str) -> None:
    tensors = [full(value, getattr(torch, dtype)) for value in (3, 5)]
    payloads = [raw(tensor) for tensor in tensors]
    total, result = make(tensors[0], "mean", 1, 2)
    total.add_local(payloads, [1.0, 1.0])
    total.finish(0)
    assert result.tolist() == [4] * 5
    assert payloads == [raw(tensor) for tensor in tensors]


def test_payloads_may_be_read_only() -> None:
    """Those of a stream are bytes."""
    total, result = make(torch.ones(3), "sum", 1, 2)
    total.add_local([memoryview(bytes(raw(torch.ones(3))))], [1.0])
    total.add(0, [memoryview(bytes(raw(full(2, torch.float32, 3))))], 1.0)
    assert result.tolist() == [3.0] * 3


def test_blocks_of_a_long_chunk_fit_together() -> None:
    elements = 300_001
    ranks = [torch.arange(elements, dtype=torch.float32) * factor for factor in (1, 2, 3)]
    assert torch.equal(reduce(ranks), ranks[1])


@pytest.mark.parametrize(("size", "inline"), [(4096, True), (LONE_INLINE_BYTES + 1, False)])
def test_large_work_leaves_the_event_loops_thread(size: int, inline: bool) -> None:
    seen: list[threading.Thread] = []

    async def main() -> None:
        kernels = Kernels(1)
        await kernels.run(size, lambda: seen.append(threading.current_thread()))
        kernels.close()

    asyncio.run(main())
    assert (seen == [threading.main_thread()]) == inline


def test_a_cancelled_caller_waits_for_its_buffers() -> None:
    begun, go = threading.Event(), threading.Event()
    done: list[bool] = []

    def work() -> None:
        begun.set()
        go.wait(10)
        done.append(True)

    async def main() -> None:
        kernels = Kernels(1)
        running = asyncio.create_task(kernels.run(LONE_INLINE_BYTES + 1, work))
        await asyncio.to_thread(begun.wait, 10)
        running.cancel()
        await asyncio.to_thread(go.set)
        with pytest.raises(asyncio.CancelledError):
            await running
        assert done == [True]
        kernels.close()

    asyncio.run(main())


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_share_is_folded_in_the_order_of_the_nodes_wherever_ones_own_stands(
    position: int,
) -> None:
    parts = [torch.tensor([value, value]) for value in (1e8, 1.0, -1e8)]
    total, result = make(parts[0], "sum", 1, 3)
    total.add_local([raw(parts[position])], [1.0])
    before, after = (
        [((raw(part),), 1.0) for part in some]
        for some in (parts[:position], parts[position + 1 :])
    )
    total.fold(0, before, after)
    total.finish(0)
    assert torch.equal(result, parts[0] + parts[1] + parts[2])
    assert total.weights == [3.0]
