"""Who is in a job: its nodes, its ranks, and who has left. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire_proto.text import printable
from gradwire_server.errors import LostError, ReductionError, RefusedError


@dataclass(frozen=True, slots=True)
class Node:
    """One daemon of a job, and the ranks that sit at it."""

    id: str
    address: str
    host: str
    ranks: tuple[int, ...]
    addresses: tuple[str, ...] = ()
    """All of them where there are several."""
    bandwidth: int = 0
    """Bits per second of its network, as its operator says; 0: like the fastest."""

    @property
    def routes(self) -> tuple[str, ...]:
        """Where connections to this node lead, in turn."""
        return self.addresses or (self.address,)


@dataclass(frozen=True, slots=True)
class Picture:
    """The whole job, as every rank of it describes it when it joins."""

    generation: str
    world_size: int
    nodes: tuple[Node, ...]

    def check(self) -> None:
        """Raise RefusedError unless every rank sits at exactly one node."""
        seated = sorted(rank for node in self.nodes for rank in node.ranks)
        # The length first: the world size is anybody's word, and may be four billion.
        if len(seated) != self.world_size or seated != list(range(self.world_size)):
            raise RefusedError(
                f"expected each of the ranks 0 to {self.world_size - 1} on one node, got"
                f" {[list(node.ranks) for node in self.nodes]}"
            )

    @property
    def bandwidths(self) -> tuple[int, ...]:
        """Of all nodes, or nothing where they are alike or not said to differ."""
        fastest = max(node.bandwidth for node in self.nodes)
        known = tuple(node.bandwidth or fastest for node in self.nodes)
        return known if min(known) < fastest else ()

    def describe(self, node: int) -> str:
        """A node in words: where it is, and who sits there."""
        there = self.nodes[node]
        ranks = ", ".join(map(str, there.ranks))
        return f"node {node} at {there.address} on {printable(there.host)} (ranks {ranks})"

    def node_of(self, rank: int) -> int:
        """Index of the node at which this rank sits."""
        return next(index for index, node in enumerate(self.nodes) if rank in node.ranks)


@dataclass(frozen=True, slots=True)
class Member:
    """A local rank that has joined."""

    rank: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid} on {printable(self.host)})"


class Group:
    """One generation of a job, seen from one of its nodes."""

    def __init__(self, picture: Picture, node: int) -> None:
        picture.check()
        if not 0 <= node < len(picture.nodes):
            raise RefusedError(f"node {node} is outside a job of {len(picture.nodes)} nodes")
        self.picture = picture
        self.node = node
        self.failure: ReductionError | None = None
        self._members: dict[int, Member] = {}
        self._departed: dict[int, int] = {}

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """Ranks that sit at this node, in order."""
        return self.picture.nodes[self.node].ranks

    @property
    def peers(self) -> list[int]:
        """The other nodes."""
        return [node for node in range(len(self.picture.nodes)) if node != self.node]

    @property
    def members(self) -> dict[int, Member]:
        """Local ranks that are here now."""
        return dict(self._members)

    @property
    def departed(self) -> set[int]:
        """Ranks, local or not, that have left in good order."""
        return set(self._departed)

    @property
    def absent(self) -> list[int]:
        """Local ranks that have not joined yet."""
        return [
            rank
            for rank in self.local_ranks
            if rank not in self._members and rank not in self._departed
        ]

    @property
    def deserted(self) -> list[int]:
        """Other nodes all of whose ranks have left."""
        return [
            peer
            for peer in self.peers
            if all(rank in self._departed for rank in self.picture.nodes[peer].ranks)
        ]

    def admit(self, member: Member, picture: Picture, node: int) -> None:
        """Seat a rank. Raises RefusedError, and changes nothing, where it can't be seated."""
        if picture != self.picture or node != self.node:
            raise RefusedError(
                f"rank {member.rank} describes generation {picture.generation} differently from"
                " the ranks before it; start all ranks of the job anew"
            )
        self.check_local(member.rank)
        if member.rank in self._members:
            raise RefusedError(
                f"{self._members[member.rank]} already has this seat; {member} came second."
                " Give every process its own RANK"
            )
        if member.rank in self._departed:
            raise RefusedError(f"rank {member.rank} has left this generation; connect anew")
        self._members[member.rank] = member

    def check_local(self, rank: int) -> None:
        """Raise RefusedError unless this rank sits at this node."""
        if rank not in self.local_ranks:
            raise RefusedError(
                f"rank {rank} does not sit at node {self.node}, which has the ranks"
                f" {list(self.local_ranks)}"
            )

    def depart(self, rank: int, sequences: int) -> None:
        """A rank, local or not, has left after this many collectives."""
        self._members.pop(rank, None)
        self._departed[rank] = sequences

    def fail(self, error: ReductionError) -> bool:
        """The job is over. True the first time; the first reason stands."""
        if self.failure is not None:
            return False
        self.failure = error
        return True

    def check(self, sequence: int) -> None:
        """Raise LostError where a collective of this number can no longer complete."""
        if (error := self.departure(sequence)) is not None:
            raise error

    def departure(self, sequence: int) -> LostError | None:
        """Why a collective of this number can no longer complete, if so."""
        gone = [rank for rank, sequences in self._departed.items() if sequences <= sequence]
        if not gone:
            return None
        left = "; ".join(
            f"rank {rank} left the job after {self._departed[rank]} collectives"
            for rank in sorted(gone)
        )
        text = f"round {sequence} can't complete: {left}"
        return LostError(text, round_=sequence, ranks=sorted(gone))

    def describe(self, ranks: list[int]) -> str:
        """Ranks with pid and host where they are known."""
        return ", ".join(str(self._members.get(rank, f"rank {rank}")) for rank in ranks)
