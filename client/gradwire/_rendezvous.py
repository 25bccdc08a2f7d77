"""Torch's store: who is on which node, in which order, in which generation.

Every rank publishes its daemon; rank 0 puts them in order, draws the generation and publishes
the picture, which the others read. Nothing is keyed by a counter that a restarted process would
begin anew without noticing: each process has a random token, and finds itself in the picture or
refuses.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from importlib.metadata import version
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, rendezvous

from gradwire._errors import ConnectError
from gradwire_proto import PROTOCOL
from gradwire_proto.addresses import is_loopback, split_address
from gradwire_proto.text import printable
from gradwire_proto.v1 import aggregator_pb2 as pb

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 10.0
"""Waiting ranks say so after this time."""

LEAST_POLL_SECONDS = 0.001
MOST_POLL_SECONDS = 0.05
"""How often a waiting rank looks."""

FOLLOW_SECONDS = 5.0
"""The others wait so much longer than rank 0, whose error tells more than theirs would."""

_ANOTHER = (
    "the job was formed with another process as rank {rank}: this one came later, after a"
    " restart"
    " or with a RANK that is taken. Start all ranks anew, and give every process its own RANK"
)

_attempts: WeakKeyDictionary[Store, Counter[int]] = WeakKeyDictionary()
"""How often each rank has met the others in a store, in this process."""

_lives: WeakKeyDictionary[Store, dict[int, str]] = WeakKeyDictionary()
"""What the keys of this process begin with, in a store in which its predecessors' are."""


@dataclass(frozen=True, slots=True)
class Card:
    """What one rank says of itself."""

    token: str
    protocol: int
    version: str
    node_id: str
    address: str
    host: str
    network: str
    insecure: bool
    chunk_bytes: int
    addresses: list[str] = field(default_factory=list)
    bandwidth: int = 0
    workers: list[list[str]] = field(default_factory=list)
    """Addresses of the daemon's further workers."""
    rank_protocol: int = PROTOCOL
    rank_version: str = ""
    """The others are the daemon's."""
    certified: bool = False

    @classmethod
    def read(cls, text: bytes) -> Card:
        """What a rank has published; another release may say more than this one knows."""
        known = {each.name for each in fields(cls)}
        said = json.loads(text).items()
        return cls(**{name: value for name, value in said if name in known})


@dataclass(frozen=True, slots=True)
class Picture:
    """The job, as all its ranks agreed."""

    generation: str
    workers: list[list[pb.Node]]
    """For each worker that all daemons have: the nodes, as they are found there."""
    node: int

    @property
    def nodes(self) -> list[pb.Node]:
        """The nodes, as the first workers have them."""
        return self.workers[0]


class Meeting:
    """One attempt of a job's ranks to find one another."""

    def __init__(
        self, store: Store, rank: int, world_size: int, timeout_seconds: float
    ) -> None:
        attempts = _attempts.setdefault(store, Counter())
        if not attempts[rank]:
            _lives.setdefault(store, {})[rank] = _life(store, rank)
        self._store = PrefixStore(f"gradwire/{_lives[store][rank]}{attempts[rank]}", store)
        attempts[rank] += 1
        self._rank = rank
        self._world_size = world_size
        self._timeout = timeout_seconds
        self._token = uuid.uuid4().hex

    def first(self, key: str) -> bool:
        """Whether this rank is the first to ask for this key."""
        return bool(self._store.add(f"first/{key}", 1) == 1)

    def publish(self, key: str, value: dict[str, Any]) -> None:
        """Let the other ranks read a value."""
        self._store.set(key, json.dumps(value))

    def read(self, key: str, what: str, extra_seconds: float = 0.0) -> dict[str, Any]:
        """A published value, waited for. Raises ConnectError after the timeout."""
        if self._wait([key], what, self._timeout + extra_seconds):
            raise ConnectError(
                f"rank {self._rank} waited {self._timeout + extra_seconds:g} s for {what}"
            )
        value: dict[str, Any] = json.loads(self._store.get(key))
        return value

    def agree(self, daemon: pb.DescribeResponse) -> Picture:
        """Show this rank's daemon, and learn the whole picture."""
        card = Card(
            self._token,
            daemon.protocol,
            daemon.version,
            daemon.node_id,
            daemon.address,
            daemon.host,
            daemon.network,
            daemon.insecure,
            daemon.chunk_bytes,
            list(daemon.addresses),
            daemon.bandwidth,
            [list(worker.addresses) for worker in daemon.workers],
            rank_version=version("gradwire"),
            certified=daemon.certified,
        )
        if self._rank == 0 and not self.first("picture"):
            raise ConnectError(_ANOTHER.format(rank=0))
        self.publish(f"rank/{self._rank}", asdict(card))
        if self._rank == 0:
            self._draw()
        picture = self.read("picture", "rank 0 to form the job", FOLLOW_SECONDS)
        return self._find_myself(picture)

    def _draw(self) -> None:
        keys = [f"rank/{rank}" for rank in range(self._world_size)]
        missing = self._wait(keys, "the other ranks", self._timeout)
        if missing:
            ranks = ", ".join(key.removeprefix("rank/") for key in missing)
            error = (
                f"the ranks {ranks} of {self._world_size} did not connect within"
                f" {self._timeout:g} s (connect_timeout); were they started, and do they call"
                " gradwire.connect()?"
            )
        else:
            cards = [Card.read(self._store.get(key)) for key in keys]
            error = check(cards)
        if error:
            self.publish("picture", {"error": error})
        else:
            self.publish("picture", draw(cards))

    def _find_myself(self, picture: dict[str, Any]) -> Picture:
        if "error" in picture:
            raise ConnectError(picture["error"])
        if picture["tokens"][self._rank] != self._token:
            raise ConnectError(_ANOTHER.format(rank=self._rank))
        workers = [[pb.Node(**node) for node in nodes] for nodes in picture["workers"]]
        here = next(index for index, node in enumerate(workers[0]) if self._rank in node.ranks)
        return Picture(picture["generation"], workers, here)

    def _wait(self, keys: list[str], what: str, timeout_seconds: float) -> list[str]:
        """Keys that are still missing after the timeout."""
        begin = time.monotonic()
        said, pause = False, LEAST_POLL_SECONDS
        # Not wait(): a store that waits in vain says so on stderr, in words of C++.
        while not self._store.check(keys):
            waited = time.monotonic() - begin
            if waited >= timeout_seconds:
                break
            if waited > PROGRESS_SECONDS and not said:
                log.warning("rank %d waits for %s", self._rank, what)
                said = True
            time.sleep(min(pause, timeout_seconds - waited))
            pause = min(2 * pause, MOST_POLL_SECONDS)
        else:
            return []
        return [key for key in keys if not self._store.check([key])]


def _life(store: Store, rank: int) -> str:
    """What tells the keys of a job that torchrun has started again from those before.

    The ranks of all lives may share the launcher's store; where a life has a store of its own,
    the launchers may have counted differently.
    """
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    first = store.add(f"gradwire/came/{rank}", 1) == 1
    return "" if first or restarts == "0" else f"restart{restarts}/"


def check(cards: list[Card]) -> str:
    """What keeps these ranks from forming a job; empty where nothing does."""
    for name in ("protocol", "chunk_bytes"):
        values = {getattr(card, name): rank for rank, card in enumerate(cards)}
        if len(values) > 1:
            said = ", ".join(
                f"{value} (rank {rank}, gradwire {cards[rank].version})"
                for value, rank in values.items()
            )
            same = "install one release everywhere" if name == "protocol" else "make them equal"
            return f"the ranks' daemons differ in {name}: {said}; {same}"
    for rank, card in enumerate(cards):
        if card.rank_protocol != card.protocol:
            return (
                f"rank {rank} is gradwire {card.rank_version} and speaks protocol"
                f" {card.rank_protocol}, its daemon on {printable(card.host)} is gradwire"
                f" {card.version} and speaks {card.protocol}; install one release everywhere"
            )
    if mistake := _mixed(cards):
        return mistake
    exposed = len({card.network for card in cards}) > 1
    closed = [(card, local) for card in cards for local in _closed(card)]
    if exposed and closed:
        card, address = closed[0]
        return (
            f"the job spans several hosts, but the daemon of {printable(card.host)} listens on"
            f" {address}, for this host only, because nothing says who may come from others."
            " Start daemons with `gradwire serve --certs FOLDER --listen HOST:PORT` (`gradwire"
            " certs` makes certificates), or set GRADWIRE_CERTS for embedded ones. On a network"
            " you trust, `gradwire serve --insecure` or GRADWIRE_INSECURE=1 do without. Where"
            " the others reach it elsewhere, --advertise ADDRESS"
        )
    return ""


def _mixed(cards: list[Card]) -> str:
    """Daemons with certificates and daemons without don't take each other's calls."""
    hosts = {card.certified: printable(card.host) for card in cards}
    if len(hosts) == 1:
        return ""
    return (
        f"the daemon of {hosts[True]} takes only callers with certificates, that of"
        f" {hosts[False]} has none: start all of a job's daemons with --certs (GRADWIRE_CERTS),"
        " or none"
    )


def _closed(card: Card) -> list[str]:
    """Addresses at which other hosts do not reach a daemon."""
    addresses = card.addresses or [card.address]
    return [
        address
        for address in addresses
        if not (card.insecure or card.certified) or is_loopback(split_address(address)[0])
    ]


def draw(cards: list[Card]) -> dict[str, Any]:
    """The picture: nodes in the order of their lowest ranks."""
    ranks: dict[str, list[int]] = {}
    for rank, card in enumerate(cards):
        ranks.setdefault(card.node_id, []).append(rank)
    workers = 1 + min(len(card.workers) for card in cards)
    return {
        "generation": uuid.uuid4().hex,
        "tokens": [card.token for card in cards],
        "workers": [
            [_node(cards[there[0]], there, worker) for there in ranks.values()]
            for worker in range(workers)
        ],
    }


def _node(card: Card, ranks: list[int], worker: int) -> dict[str, Any]:
    """A node's entry, as it is found at one of its workers."""
    addresses = card.workers[worker - 1] if worker else card.addresses
    return {
        "id": card.node_id,
        "address": addresses[0] if worker else card.address,
        "addresses": addresses,
        "bandwidth": card.bandwidth,
        "host": card.host,
        "ranks": ranks,
    }


def find_store(
    store: Store | None, rank: int | None, world_size: int | None
) -> tuple[Store, int, int]:
    """Store, rank and world size of the job: given, torch's own, or the environment's."""
    found = _find_store(store, rank, world_size)
    if not 0 <= found[1] < found[2]:
        raise ConnectError(f"rank {found[1]} is outside a world of {found[2]}")
    return found


def _find_store(
    store: Store | None, rank: int | None, world_size: int | None
) -> tuple[Store, int, int]:
    if store is not None:
        if rank is None or world_size is None:
            raise ConnectError("connect(store=...) needs rank=... and world_size=... too")
        return store, rank, world_size
    if dist.is_available() and dist.is_initialized():
        default = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no other
        return default, dist.get_rank(), dist.get_world_size()
    missing = [
        name
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        if name not in os.environ
    ]
    if missing:
        raise ConnectError(
            f"there is no process group, and {', '.join(missing)} are not set: start with"
            " torchrun,"
            " call init_process_group first, or set all of RANK, WORLD_SIZE, MASTER_ADDR and"
            " MASTER_PORT"
        )
    wrong = [
        f"{name}={os.environ[name]}"
        for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")
        if not os.environ[name].isdigit()
    ]
    if wrong:
        raise ConnectError(f"expected whole numbers, got {', '.join(wrong)}")
    return _from_environment()


@cache
def _from_environment() -> tuple[Store, int, int]:
    """Met once a process: who connects again must find the same store, and not its old keys."""
    store, rank, world_size = next(rendezvous("env://"))
    return store, rank, world_size
