"""Several nodes' engines on a network in memory, in virtual time."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest
import torch

from gradwire_proto.v1 import tensor_pb2 as pb
from gradwire_server.reduce.choose import NAMES, SCHEDULES
from gradwire_server.round import Contribution, Key, Spec
from gradwire_server.testing import run, virtual_seconds
from gradwire_server.testing_job import job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradwire_proto.v1 import peer_pb2

SHAPES = [(1,), (4,), (3, 1), (1, 2, 4), (2, 2, 2, 2), (1, 1, 1, 1, 1)]

every_schedule = pytest.mark.parametrize("schedule", NAMES, ids=NAMES.get)


def noise(world: int, elements: int, seed: int = 0) -> list[torch.Tensor]:
    """Numbers whose fp32 sum depends on the order of summation."""
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(elements, generator=draw) * 10.0 ** (rank % 5) for rank in range(world)]


def bits(tensors: Sequence[torch.Tensor]) -> set[bytes]:
    return {tensor.numpy().tobytes() for tensor in tensors}


@pytest.mark.case("M05")
@every_schedule
def test_the_mean_is_over_ranks_and_not_over_nodes(schedule: peer_pb2.Schedule) -> None:
    async def main() -> None:
        async with job(3, 1, schedules=[schedule]) as made:
            made.bring_all(0, [torch.full((100,), value) for value in (1.0, 2.0, 3.0, 10.0)])
            for result in await made.results(0, torch.ones(100)):
                assert result.tolist() == [4.0] * 100

    run(main())


@pytest.mark.case("M07")
@every_schedule
@pytest.mark.parametrize("position", [0, 3, 7])
def test_bf16_is_rounded_once_whichever_rank_holds_the_large_number(
    schedule: peer_pb2.Schedule, position: int
) -> None:
    async def main() -> None:
        async with job(2, 2, 2, 2, schedules=[schedule]) as made:
            values = [256.0 if rank == position else 1.0 for rank in range(8)]
            made.bring_all(0, [torch.full((70,), v, dtype=torch.bfloat16) for v in values])
            for result in await made.results(0, torch.ones(70, dtype=torch.bfloat16)):
                assert result.tolist() == [33.0] * 70

    run(main())


@pytest.mark.case("M24", "M25")
@every_schedule
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("elements", [0, 1, 2, 3, 17, 50])
def test_every_rank_ends_with_the_same_bits_of_the_mean(
    schedule: peer_pb2.Schedule, shape: tuple[int, ...], elements: int
) -> None:
    async def main() -> None:
        async with job(*shape, schedules=[schedule]) as made:
            tensors = noise(made.world, elements)
            made.bring_all(0, tensors)
            results = await made.results(0, tensors[0])
            assert len(bits(results)) == 1
            exact = torch.stack(tensors).double().mean(0).float()
            assert torch.allclose(results[0], exact, rtol=1e-5, atol=1e-2)

    run(main())


@pytest.mark.case("M28")
@every_schedule
def test_many_rounds_in_flight_give_the_same_bits_in_every_order_of_arrival(
    schedule: peer_pb2.Schedule,
) -> None:
    rounds, world = 8, 6
    tensors = [noise(world, 41, sequence) for sequence in range(rounds)]

    async def main(seed: int) -> list[bytes]:
        draw = random.Random(seed)  # noqa: S311 - an order, not a secret
        async with job(2, 3, 1, schedules=[schedule], seed=seed) as made:
            waiting = {
                rank: [
                    chunk
                    for sequence in range(rounds)
                    for chunk in made.chunks(rank, sequence, tensors[sequence][rank])
                ]
                for rank in range(world)
            }
            while waiting:
                rank = draw.choice(list(waiting))
                waiting[rank].pop(0)()
                if not waiting[rank]:
                    del waiting[rank]
                if draw.random() < 0.3:
                    await asyncio.sleep(0)
            ends = [bits(await made.results(each, torch.ones(41))) for each in range(rounds)]
            assert [len(end) for end in ends] == [1] * rounds
            return [end.pop() for end in ends]

    first, *others = [run(main(seed)) for seed in range(5)]
    assert others == [first] * 4


def test_a_payload_may_be_any_memory() -> None:
    async def main() -> None:
        async with job(2, 1) as made:
            made.bring(0, 0, torch.zeros(10))
            made.bring(2, 0, torch.full((10,), 2.0))
            spec = Spec(pb.OP_MEAN, pb.DTYPE_FLOAT32, 10, 0)
            payload = memoryview(torch.ones(10).numpy().tobytes())
            made.engines[0].contribute(1, Key(0, 0), Contribution(spec, 1.0, payload))
            for result in await made.results(0, torch.ones(10)):
                assert result.tolist() == [1.0] * 10

    run(main())


def test_integers_of_all_nodes_are_summed() -> None:
    async def main() -> None:
        async with job(2, 2) as made:
            for rank in range(4):
                made.bring(rank, 0, torch.full((9,), 10**rank), "sum")
            for result in await made.results(0, torch.ones(9, dtype=torch.int64)):
                assert result.tolist() == [1111] * 9

    run(main())


def test_rounds_are_counted_and_leave_nothing_open() -> None:
    async def main() -> None:
        async with job(2, 2, slots=3) as made:
            for sequence in range(0, 21, 3):
                for ahead in range(3):  # as far as a rank may run ahead with 3 slots
                    made.bring_all(sequence + ahead, [torch.full((9,), float(sequence))] * 4)
                for ahead in range(3):
                    for result in await made.results(sequence + ahead, torch.ones(9)):
                        assert result.tolist() == [float(sequence)] * 9
            await virtual_seconds(1)
            assert [engine.headway.done for engine in made.engines] == [21, 21]
            assert [engine.headway.open_rounds for engine in made.engines] == [0, 0]
            assert [made.engine_of(rank).headway.sequences(rank) for rank in range(4)] == [
                21
            ] * 4
            rounds = made.registry.get_sample_value(
                "gradwire_rounds_total", {"schedule": "one-shot"}
            )
            assert rounds == 42

    run(main())


def test_nodes_of_different_bandwidth_end_with_the_same_bits_of_the_same_mean() -> None:
    """Whoever is too slow for a share of its own has none."""

    async def main() -> None:
        direct = [SCHEDULES["direct"]]
        async with job(2, 1, 1, schedules=direct, bandwidths=(10, 10, 1)) as made:
            tensors = noise(made.world, 500)
            made.bring_all(0, tensors)
            results = await made.results(0, tensors[0])
            assert len(bits(results)) == 1
            exact = torch.stack(tensors).double().mean(0).float()
            assert torch.allclose(results[0], exact, rtol=1e-5, atol=1e-2)

    run(main())
