"""What every schedule promises of what is gathered: engines on a network in memory."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire_proto.chunks import cut, overlap
from gradwire_proto.v1 import peer_pb2
from gradwire_proto.v1 import tensor_pb2 as pb
from gradwire_server.reduce.choose import NAMES
from gradwire_server.round import Contribution, Key, Spec
from gradwire_server.testing import run
from gradwire_server.testing_job import CHUNK_BYTES, MemoryJob, job

SHAPES = st.lists(st.integers(1, 3), min_size=1, max_size=5)


def bring(made: MemoryJob, rank: int, whole: torch.Tensor, part: tuple[int, int]) -> None:
    """A rank brings elements [start, stop), chunk by chunk, as a client does."""
    pieces = cut(whole.numel(), 1, CHUNK_BYTES)
    spec = Spec(pb.OP_GATHER, pb.DTYPE_UINT8, whole.numel(), 0)
    for chunk in range(pieces.count):
        start, stop = pieces.range(chunk)
        first, end = overlap((start, stop), part)
        padded = bytearray(stop - start if end > first else 0)
        padded[first - start : end - start] = bytes(whole[first:end].tolist())
        contribution = Contribution(spec, float(end - first), memoryview(padded))
        made.engine_of(rank).contribute(rank, Key(0, chunk), contribution)


@pytest.mark.parametrize("schedule", [None, *NAMES], ids=lambda each: NAMES.get(each, "chosen"))
@given(
    shape=SHAPES,
    elements=st.integers(0, 3 * CHUNK_BYTES),
    data=st.data(),
    seed=st.integers(0, 99),
)
def test_every_rank_ends_with_what_all_have_brought(
    schedule: peer_pb2.Schedule | None,
    shape: list[int],
    elements: int,
    data: st.DataObject,
    seed: int,
) -> None:
    world = sum(shape)
    ends = st.lists(st.integers(0, elements), min_size=world - 1, max_size=world - 1)
    inner = sorted(data.draw(ends))
    parts = list(zip([0, *inner], [*inner, elements], strict=True))
    order = data.draw(st.permutations(range(world)))
    draw = torch.Generator().manual_seed(seed)
    whole = torch.randint(0, 256, (elements,), generator=draw, dtype=torch.uint8)

    async def main() -> None:
        async with job(*shape, schedules=[schedule], seed=seed) as made:
            for rank in range(world):
                bring(made, rank, whole, parts[order[rank]])
            for result in await made.results(0, whole, "max"):
                assert torch.equal(result, whole)

    run(main())
