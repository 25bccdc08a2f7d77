"""The ranks of one node in this process, over one arena; the test plays the daemon's part."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from gradwire._chain import Chain
from gradwire._collective import Collective
from gradwire._order import reducing
from gradwire._result import Result
from gradwire._shared_memory import Arena
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_server import shared_memory
from gradwire_server.chain import Chain as DaemonsSide
from gradwire_server.memory_folder import MemoryFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import torch

    from gradwire._order import Order

CHUNK_BYTES = 64 * 1024
SLOTS = 3


class Bell:
    """A doorbell that keeps what is rung."""

    daemon = "the daemon"

    def __init__(self) -> None:
        self.rings: list[pb.Ring] = []

    def ring(self, ring: pb.Ring) -> None:
        self.rings.append(ring)

    def close(self) -> None: ...


class Node:
    """All ranks of a node, in this process, over one arena."""

    def __init__(self, folder: Path, ranks: int, *, alone: bool = True) -> None:
        numbers, where = tuple(range(ranks)), MemoryFolder(folder)
        self.arena = shared_memory.create(numbers, SLOTS, CHUNK_BYTES, where)
        self.daemon = DaemonsSide(self.arena, tuple(range(ranks)), alone=alone)
        self.bells = [Bell() for _ in range(ranks)]
        self.chains = []
        self.done: dict[tuple[int, int], torch.Tensor] = {}
        for rank, bell in enumerate(self.bells):
            said = pb.Arena(
                path=str(self.arena.path), nonce=self.arena.nonce, ranks=ranks, local_rank=rank
            )
            mapped = Arena(said)
            chain = Chain(mapped, bell, ranks, alone=alone)  # type: ignore[arg-type]  # a fake
            self.chains.append(chain)

    def bring(
        self,
        rank: int,
        sequence: int,
        tensor: torch.Tensor,
        op: str = "sum",
        weight: float = 1.0,
    ) -> None:
        self.order(rank, sequence, reducing(tensor, [tuple(tensor.shape)], op, weight))

    def order(self, rank: int, sequence: int, order: Order) -> None:
        result: Result[torch.Tensor] = Result(lambda *_: None)
        self.chains[rank].put(Collective(sequence, order, result))

    def advance(self, rank: int) -> bool:
        done = self.chains[rank].advance()
        if isinstance(done, Collective):
            self.done[rank, done.sequence] = done.finish()
        return done is not False

    def work(self, seed: int = 0) -> None:
        """All ranks, in any order, until none has anything left to do."""
        draw = random.Random(seed)  # noqa: S311 - an order, not a secret
        busy = set(range(len(self.chains)))
        while busy:
            rank = draw.choice(sorted(busy))
            if self.advance(rank):
                busy = set(range(len(self.chains)))
            else:
                busy.discard(rank)

    def close(self) -> None:
        for chain in self.chains:
            chain.close(orphaned=False)
        self.arena.close()


@pytest.fixture
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    made = Node(tmp_path, getattr(request, "param", 3))
    yield made
    made.close()


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path, 2, alone=False)
    yield made
    made.close()


@pytest.fixture
def node_of() -> Callable[..., Node]:
    """Makes nodes that the test closes itself."""
    return Node
