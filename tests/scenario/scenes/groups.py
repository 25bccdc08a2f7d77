"""Who is in a job, as one of its nodes sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwire_server.errors import LostError
from gradwire_server.group import Group, Member, Node, Picture
from scenes.script import Scene, command, numbers

if TYPE_CHECKING:
    from collections.abc import Iterator


def picture_of(nodes: str) -> Picture:
    """What "0 1 | 2" is: the ranks of each node."""
    ranks = [tuple(numbers(each)) for each in nodes.split("|")]
    made = (
        Node(f"n{node}", f"10.0.0.{node}:1", f"host{node}", each)
        for node, each in enumerate(ranks)
    )
    return Picture("g", sum(map(len, ranks)), tuple(made))


@command(r"a job of ranks ([\d |]+), seen from node (\d+)")
class Groups(Scene):
    """Ranks of different nodes are parted by a bar."""

    def __init__(self, nodes: str, node: int) -> None:
        self._picture, self._node = picture_of(nodes), node
        self._group = Group(self._picture, node)

    @command(r"rank (\d+) joins")
    def join(self, rank: int) -> Iterator[str]:
        self._group.admit(self._member(rank), self._picture, self._node)
        yield f"seated; absent: {self._group.absent}"

    @command(r"rank (\d+) joins, and describes ([\d |]+)")
    def describe(self, rank: int, nodes: str) -> Iterator[str]:
        self._group.admit(self._member(rank), picture_of(nodes), self._node)
        yield "seated"

    @command(r"somebody describes ([\d |]+)")
    def picture(self, nodes: str) -> Iterator[str]:
        Group(picture_of(nodes), 0)
        yield "taken"

    @command(r"rank (\d+) leaves after (\d+)")
    def leave(self, rank: int, sequences: int) -> Iterator[str]:
        self._group.depart(rank, sequences)
        yield f"here: {sorted(self._group.members)}, absent: {self._group.absent}"

    @command(r"can (\d+) complete\?")
    def check(self, sequence: int) -> Iterator[str]:
        self._group.check(sequence)
        yield "yes"

    @command(r"the job fails: (.+)")
    def fail(self, why: str) -> Iterator[str]:
        first = self._group.fail(LostError(why))
        yield f"{'over' if first else 'was over'}: {self._group.failure}"

    def _member(self, rank: int) -> Member:
        return Member(rank, f"host{self._node}", 100 + rank)
