"""All nodes agree on which chunk is not finite, and who brought it; in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from gradwire_proto.nonfinite import NOBODY, Finding
from gradwire_proto.v1 import tensor_pb2 as pb
from gradwire_server.errors import WeightError
from gradwire_server.reduce.choose import NAMES
from gradwire_server.round import Contribution, Key, Spec
from gradwire_server.testing import run
from gradwire_server.testing_job import CHUNK_BYTES, job

if TYPE_CHECKING:
    from gradwire_proto.v1 import aggregator_pb2, peer_pb2
    from gradwire_server.testing_job import MemoryJob

SHAPES = [(1,), (3, 1), (1, 2, 1), (1, 1, 1, 1, 1)]
STEP = CHUNK_BYTES // 4
CHUNKS = 3

every_schedule = pytest.mark.parametrize("schedule", NAMES, ids=NAMES.get)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def bring(
    made: MemoryJob, tensors: list[torch.Tensor], *, inspected: bool, weight: float = 1.0
) -> None:
    for rank, tensor in enumerate(tensors):
        spec = Spec(pb.OP_MEAN, pb.DTYPE_FLOAT32, tensor.numel(), 0, inspected=inspected)
        for chunk in range(CHUNKS):
            part = tensor[chunk * STEP : (chunk + 1) * STEP]
            data = memoryview(part.view(torch.uint8).numpy().tobytes())
            contribution = Contribution(spec, weight, data)
            made.engine_of(rank).contribute(rank, Key(0, chunk), contribution)


async def everything(made: MemoryJob) -> None:
    await made.heard.until(lambda: len(made.heard.results) == CHUNKS * made.world)


def ones(world: int, bad: dict[int, list[int]]) -> list[torch.Tensor]:
    tensors = [torch.ones(CHUNKS * STEP) for _ in range(world)]
    for rank, elements in bad.items():
        tensors[rank][elements] = float("nan")
    return tensors


@pytest.mark.case("M08")
@every_schedule
@every_shape
@pytest.mark.parametrize("inspected", [False, True])
def test_all_ranks_hear_the_same_of_every_chunk(
    schedule: peer_pb2.Schedule, shape: tuple[int, ...], inspected: bool
) -> None:
    last = sum(shape) - 1
    # The first chunk is good; the second has one of the last rank in its last share; of the
    # third, several ranks have several.
    bad = {last: [2 * STEP - 1, 2 * STEP + 3], 0: [2 * STEP + 14]}
    if last == 0:
        bad = {0: [2 * STEP - 1, 2 * STEP + 3]}
    lowest = Finding(0, 14) if last else Finding(0, 3)
    expected = [None, Finding(last, STEP - 1), lowest]
    if not inspected:
        expected = [None, Finding(NOBODY, STEP - 1), Finding(NOBODY, 3)]

    async def main() -> None:
        for seed in range(3):
            async with job(*shape, schedules=[schedule], seed=seed) as made:
                bring(made, ones(sum(shape), bad), inspected=inspected)
                await everything(made)
                for rank in range(sum(shape)):
                    heard = [made.heard.findings[rank, Key(0, one)] for one in range(CHUNKS)]
                    assert heard == expected

    run(main())


@pytest.mark.case("M34")
@every_schedule
@every_shape
def test_all_ranks_hear_that_nobody_has_a_weight(
    schedule: peer_pb2.Schedule, shape: tuple[int, ...]
) -> None:
    failures: list[aggregator_pb2.Failure] = []

    async def main() -> None:
        async with job(*shape, schedules=[schedule]) as made:
            bring(made, ones(sum(shape), {0: [5]}), inspected=True, weight=0.0)
            everybody = {(rank, 0) for rank in range(sum(shape))}
            await made.heard.until(lambda: everybody <= made.heard.failures.keys())
            failures.extend(made.heard.failures[each] for each in everybody)

    run(main())
    assert {failure.kind for failure in failures} == {WeightError.kind}
    words = f"round 0: all {sum(shape)} ranks brought weight 0"
    assert all(failure.reason.startswith(words) for failure in failures)
