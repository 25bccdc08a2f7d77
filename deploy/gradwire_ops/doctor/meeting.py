"""The processes of a job meet in its store: one of each node looks at it, and all ways between
nodes are measured, one after the other.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from itertools import permutations
from typing import TYPE_CHECKING, Any

from gradwire_ops.doctor.facts import Host, Link
from gradwire_ops.doctor.links import answering, measure

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import Store

PREFIX = "gradwire-doctor"


class AbsentError(Exception):
    """Not all processes of the job came; the text says how many did."""


@dataclass(frozen=True, slots=True)
class Met:
    """What was found out together."""

    hosts: list[Host]
    links: list[Link]


@dataclass(frozen=True, slots=True)
class _Member:
    index: int
    rank: int
    node: str


class Meeting:
    """One process' part in it."""

    def __init__(
        self, store: Store, rank: int, world_size: int, node: str, *, timeout: float = 60.0
    ) -> None:
        """Waits for all others. Raises AbsentError, as all that follows, where one does not
        come, or says nothing for so many seconds.
        """
        self._store = store
        self._timeout = timeout
        index = store.add(f"{PREFIX}/count", 1) - 1
        self._set(f"member/{index}", {"index": index, "rank": rank, "node": node})
        # Rank 0's node first: that is where people look.
        members = sorted(self._members(world_size), key=lambda each: (each.rank, each.index))
        nodes = list(dict.fromkeys(each.node for each in members))
        self._place = nodes.index(node)
        self._nodes = len(nodes)
        mine = [each for each in members if each.node == node]
        self._leads = mine[0].index == index
        self._ranks = [each.rank for each in mine]
        self.reports = self._leads and self._place == 0
        """This process is the one that speaks for all."""

    def find_out(
        self,
        look: Callable[[list[int]], Host],
        seconds: float,
        progress: Callable[[str], None],
    ) -> Met:
        """What there is on each node and between them; every process gets it in the end.

        `look`, at this host, with the ranks that are here. `seconds`: for each way.
        """
        if self._leads:
            host = look(self._ranks)
            with answering(host.address) as port:
                self._set(
                    f"host/{self._place}", {"host": host.to_json().decode(), "port": port}
                )
                self._take_turns(host, seconds, progress)
                self._set(f"done/{self._place}", True)
                # The others may measure the way to here still.
                for place in range(self._nodes):
                    self._get(f"done/{place}")
        hosts = _told_apart([self._host(place)[0] for place in range(self._nodes)])
        links = [
            Link(
                **{
                    **self._get(f"link/{here}/{there}"),
                    "source": hosts[here].name,
                    "target": hosts[there].name,
                }
            )
            for here, there in permutations(range(self._nodes), 2)
        ]
        return Met(hosts, links)

    def agree(self, code: int | None) -> int:
        """All end with what the one that reports says."""
        if code is not None:
            self._set("code", code)
        return int(self._get("code"))

    def _take_turns(self, host: Host, seconds: float, progress: Callable[[str], None]) -> None:
        for here, there in permutations(range(self._nodes), 2):
            name = f"link/{here}/{there}"
            other, port = self._host(there)
            if self.reports:
                progress(f"{self._host(here)[0].name} -> {other.name}")
            if here == self._place:
                link = measure(host.name, other.name, other.address, port, seconds)
                self._set(name, asdict(link))
            else:
                # Nobody measures while another does.
                self._get(name)

    def _host(self, place: int) -> tuple[Host, int]:
        said = self._get(f"host/{place}")
        return Host.from_json(said["host"].encode()), said["port"]

    def _members(self, world_size: int) -> list[_Member]:
        found = []
        for index in range(world_size):
            try:
                found.append(_Member(**self._get(f"member/{index}")))
            except AbsentError:
                raise AbsentError(
                    f"{len(found)} of {world_size} processes came: start it as the job is"
                    " started, with the same number of processes on all nodes"
                ) from None
        return found

    def _set(self, name: str, value: Any) -> None:  # noqa: ANN401 - whatever JSON has
        self._store.set(f"{PREFIX}/{name}", json.dumps(value))

    def _get(self, name: str) -> Any:  # noqa: ANN401 - whatever JSON has
        key = f"{PREFIX}/{name}"
        try:
            self._store.wait([key], timedelta(seconds=self._timeout))
            return json.loads(self._store.get(key))
        except Exception as error:  # DistStoreError, which not all releases have
            raise AbsentError(f"waited {self._timeout:g} s for {name}: {error}") from error


def _told_apart(hosts: list[Host]) -> list[Host]:
    """Hosts whose names are the same have their addresses with them."""
    names = [host.name for host in hosts]
    return [
        host
        if names.count(host.name) == 1
        else replace(host, name=f"{host.name}@{host.address}")
        for host in hosts
    ]
