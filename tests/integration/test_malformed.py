"""Thousands of messages that make no sense, at every port, beside a job that must not notice.

GRADWIRE_TEST_MALFORMED=N sends N of them instead of a few; GRADWIRE_TEST_SEED draws others.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire_ops.cluster import Cluster, cluster
from gradwire_proto import wire
from gradwire_proto.v1 import aggregator_pb2 as pb
from hostile import peers, ranks, sockets
from hostile.holdings import Holdings, arenas, generations, soon
from hostile.seats import SECONDS, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gradwire_ops.children import Child

    Assault = Callable[[random.Random, Target], int]

MESSAGES = int(os.environ.get("GRADWIRE_TEST_MALFORMED", "1500"))
SEED = int(os.environ.get("GRADWIRE_TEST_SEED", "1"))
WARM_UP = 500
"""So many before anything is measured: by then all buffers have been made once."""

LAYOUT = (2, 2)
ELEMENTS = 3000
PAUSE_SECONDS = 0.005
GROWTH_BYTES = 16 << 20
QUIET_SECONDS = 20.0
"""What is half open ends by itself within this."""

LONGEST_LOG_BYTES = 1000
"""A message. More would fill the disk of whoever is scanned."""


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("memory")


@pytest.fixture(scope="module")
def nodes(memory: Path) -> Iterator[Cluster]:
    settings = {
        "GRADWIRE_SHM_DIR": str(memory),
        "GRADWIRE_METRICS_LISTEN": "127.0.0.1:0",
        "GRADWIRE_CHUNK_BYTES": "65536",
    }
    with cluster(len(LAYOUT), settings) as running:
        yield running


class Honest:
    """A job that goes on reducing, and looks at every result, until it is told to end."""

    def __init__(self, nodes: Cluster) -> None:
        self.rounds = 0
        self.generation = ""
        self._nodes = nodes
        self._store = dist.HashStore()
        self._ending = threading.Event()
        self._joined = threading.Barrier(sum(LAYOUT) + 1)
        self._pool = ThreadPoolExecutor(sum(LAYOUT))
        self._work = [self._pool.submit(self._reduce, rank) for rank in range(sum(LAYOUT))]
        self._joined.wait(30)

    def end(self) -> None:
        """Raises what any rank has raised."""
        self._ending.set()
        for each in self._work:
            each.result(30)
        self._pool.shutdown()

    def advances(self) -> bool:
        """Further rounds are done, right, within moments."""
        self._check()
        before = self.rounds
        return soon(lambda: self.rounds > before + 2)

    def _check(self) -> None:
        for each in self._work:
            if each.done():
                each.result()

    def _reduce(self, rank: int) -> None:
        world, node = sum(LAYOUT), 0 if rank < LAYOUT[0] else 1
        daemon = self._nodes.addresses[node]
        with gradwire.connect(
            store=self._store, rank=rank, world_size=world, daemon=daemon, timeout=30.0
        ) as session:
            self.generation = session.generation
            self._joined.wait(30)
            going = True
            while going:
                mine = torch.full((ELEMENTS,), float(1 << rank))
                # All stop after the same round: that of the first to be told.
                mine[0] = float(self._ending.is_set())
                total = session.all_reduce(mine, "sum").wait()
                going = not total[0]
                assert torch.equal(total[1:], torch.full((ELEMENTS - 1,), float(2**world - 1)))
                self.rounds += rank == 0
                time.sleep(PAUSE_SECONDS)


@pytest.fixture
def honest(nodes: Cluster) -> Iterator[Honest]:
    job = Honest(nodes)
    yield job
    job.end()


@pytest.fixture
def targets(nodes: Cluster, honest: Honest) -> Iterator[list[Target]]:
    found = [Target(address) for address in nodes.addresses]
    yield found
    for target in found:
        target.close()
    sockets.let_go()


def besiege(
    draw: random.Random, targets: list[Target], assaults: dict[str, Assault], messages: int
) -> Counter[str]:
    """So many messages in all; how many of each kind."""
    sent: Counter[str] = Counter()
    names = list(assaults)
    while sent.total() < messages:
        name = names[len(sent)] if len(sent) < len(names) else draw.choice(names)
        sent[name] += assaults[name](draw, draw.choice(targets))
    return sent


def all_quiet(nodes: Cluster, memory: Path, generation: str) -> bool:
    """Of all jobs only the honest one is left."""
    alone = generations(nodes) == [generation] * len(LAYOUT)
    return alone and len(arenas(memory)) == len(LAYOUT)


def test_what_is_no_message_is_refused_and_is_no_news(nodes: Cluster) -> None:
    log = nodes.folder / "node0.log"
    with closing(Target(nodes.addresses[0])) as target:
        said = len(log.read_text())
        for method in ("Describe", "Join", "Leave", "Status", "ReadResiduals"):
            kind = "unary_stream" if method == "ReadResiduals" else "unary_unary"
            call: Any = getattr(target.channel, kind)(f"/gradwire.v1.Aggregator/{method}")
            with pytest.raises(grpc.RpcError) as caught:
                list(call(b"\xff" * 9, timeout=SECONDS))
            assert isinstance(caught.value, grpc.Call)
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert f"this is no {method}Request" in str(caught.value.details())
        refused = target.stream("Aggregator/WriteResiduals", [b"\xff" * 9])
        assert refused == grpc.StatusCode.INVALID_ARGUMENT
        assert len(log.read_text()) == said


def test_a_stream_that_ends_while_its_first_answer_is_written_ends_for_the_rank_too(
    nodes: Cluster,
) -> None:
    good = pb.ReduceRequest(sequence=0, spec=ranks.MEAN, weight=1.0)
    brought = wire.join(good, ranks.FIFTY)
    endings: list[tuple[list[bytes], grpc.StatusCode]] = [
        ([b"\xff" * 9], grpc.StatusCode.INVALID_ARGUMENT),
        ([], grpc.StatusCode.OK),
    ]
    with closing(Target(nodes.addresses[0])) as target:
        for last, code in endings * 30:
            with target.seat(target.request(0, [0])) as seat:
                first = pb.ReduceRequest(seat=seat.seat).SerializeToString()
                assert target.stream("Aggregator/Reduce", [first, brought, *last]) == code


@pytest.mark.case("P06", "R18", "S08")
@pytest.mark.timeout(120 + MESSAGES // 20)
def test_no_message_harms_a_daemon_or_the_job_beside_it(
    nodes: Cluster, honest: Honest, targets: list[Target], memory: Path
) -> None:
    draw = random.Random(SEED)  # noqa: S311 - nonsense, not a secret
    assaults: dict[str, Assault] = {
        "calls": ranks.calls,
        "seatless": ranks.seatless,
        "chunks": ranks.chunks,
        "letters": ranks.letters,
        "residuals": ranks.residuals,
        "rings": ranks.rings,
        "strangers": partial(peers.strangers, generation=honest.generation),
        "members": peers.members,
        "port": sockets.port,
        "page": sockets.page,
    }
    calm = partial(all_quiet, nodes, memory, honest.generation)

    sent = besiege(draw, targets, assaults, WARM_UP)
    sockets.let_go()
    assert soon(calm, QUIET_SECONDS)
    before = [Holdings.of(daemon.pid) for daemon in nodes.daemons]
    sent += besiege(draw, targets, assaults, MESSAGES - WARM_UP)
    assert honest.advances()
    sockets.let_go()
    print(f"{sent.total()} messages: {dict(sent)}; {honest.rounds} honest rounds")  # noqa: T201

    assert [daemon.exit_code for daemon in nodes.daemons] == [None] * len(LAYOUT)
    assert soon(calm, QUIET_SECONDS)
    for daemon, had in zip(nodes.daemons, before, strict=True):

        def flat(daemon: Child = daemon, had: Holdings = had) -> bool:
            return Holdings.of(daemon.pid).within(had)

        assert soon(flat, QUIET_SECONDS), (had, Holdings.of(daemon.pid))
        assert Holdings.of(daemon.pid).resident_bytes < had.resident_bytes + GROWTH_BYTES
    assert honest.advances()
    for log in sorted(nodes.folder.glob("*.log")):
        text = log.read_text(errors="replace")
        assert "Traceback" not in text, text[text.index("Traceback") - 500 :][:3000]
        assert len(text) < LONGEST_LOG_BYTES * MESSAGES
