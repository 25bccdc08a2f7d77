"""What an engine counts for those who look on; and that a page of many ranks is quick."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
import torch
from prometheus_client import CollectorRegistry, generate_latest

from gradwire_proto.v1 import tensor_pb2 as pb
from gradwire_server.codecs import codec_of
from gradwire_server.meters import SAMPLED_EVERY, CodecMeter, Payload, RankFigures
from gradwire_server.metrics import Metrics
from gradwire_server.straggling import Straggling
from gradwire_server.transport.watch import Status

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.parametrize(("wire", "most"), [(pb.WIRE_BF16, 2**-8), (pb.WIRE_INT8, 0.02)])
def test_what_a_codec_loses_is_what_decoding_says(wire: pb.Wire, most: float) -> None:
    meter, codec = CodecMeter(), codec_of(wire)
    values = torch.randn(50_000, generator=torch.Generator().manual_seed(1))
    before = values.clone()
    assert meter.error_ratio is None
    meter.sample(codec, values, 0)
    assert meter.error_ratio is not None
    assert 0 < meter.error_ratio < most
    assert torch.equal(values, before)


@pytest.mark.parametrize("values", [[0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0], []])
def test_what_has_no_error_ratio_leaves_the_last_one(values: Sequence[float]) -> None:
    meter = CodecMeter()
    meter.error_ratio = 0.25
    meter.sample(codec_of(pb.WIRE_BF16), torch.tensor(values), 0)
    assert meter.error_ratio == 0.25


def test_every_share_is_counted_and_few_are_looked_at() -> None:
    meter, values = CodecMeter(), torch.ones(10)
    due = [meter.encoded(values, 20) for _ in range(2 * SAMPLED_EVERY)]
    assert [number for number, each in enumerate(due) if each] == [0, SAMPLED_EVERY]
    assert (meter.raw_bytes, meter.encoded_bytes) == (80 * SAMPLED_EVERY, 40 * SAMPLED_EVERY)


def test_who_comes_last_is_counted_once_for_each_collective() -> None:
    straggling = Straggling((4, 5), 0.0)
    for sequence, (first, second) in enumerate([(1.0, 1.1), (2.0, 2.2), (3.5, 3.1)]):
        straggling.came(4, sequence, first)
        straggling.came(5, sequence, second)
        straggling.look(sequence + 2.9, (4, 5))
        straggling.look(sequence + 2.95, (4, 5))
    straggling.came(4, 3, 9.0)
    straggling.look(10.0, (4, 5))
    assert straggling.last_arrivals == {4: 1, 5: 2}, "of the last one it is not known yet"


def test_a_page_of_64_ranks_and_peers_is_made_in_no_time() -> None:
    metrics = Metrics(CollectorRegistry(), "0")
    names = [f"10.0.0.{number}:29400" for number in range(64)]
    metrics.ranks.add(1, lambda: [(str(rank), RankFigures(0.5, rank)) for rank in range(64)])
    metrics.links.add(1, lambda: [(name, Status(bandwidth=1e9)) for name in names])
    metrics.payloads.add(1, lambda: [(name, Payload()) for name in names])
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        page = generate_latest(metrics.registry).decode()
        seconds.append(time.perf_counter() - began)
    assert page.count("gradwire_rank_straggling{") == 64
    assert page.count("gradwire_link_up{") == 64
    assert min(seconds) < 0.5, "50 ms is meant; this machine may be busy"
    print(f"{1e3 * min(seconds):.1f} ms")  # noqa: T201 - for who looks
