"""The TCP connections between two daemons, counted from outside."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import psutil
import pytest
import torch

from gradwire_ops import query
from gradwire_ops.cluster import Cluster, cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import gradwire

    InThreads = Callable[..., list[list[Counter[str]]]]

ELEMENTS = 4 << 20
PATIENCE_SECONDS = 20.0


def between(nodes: Cluster) -> Counter[str]:
    """Established connections from the first daemon to each address of the second.

    Less the pulse, which leads to the first of these.
    """
    there = query.describe(nodes.addresses[1])
    seen: Counter[str] = Counter()
    for each in psutil.Process(nodes.daemons[0].pid).net_connections("tcp"):
        if each.raddr and each.status == psutil.CONN_ESTABLISHED:
            seen[f"{each.raddr.ip.removeprefix('::ffff:')}:{each.raddr.port}"] += 1
    seen[there.address] -= 1
    return Counter({each: seen[each] for each in there.addresses if seen[each] > 0})


def counts(nodes: Cluster, wanted: int) -> Callable[[gradwire.Session], list[Counter[str]]]:
    """Work of a rank: what is between the daemons at first, once it is enough, and at last."""

    def work(session: gradwire.Session) -> list[Counter[str]]:
        assert session.all_reduce(torch.ones(3)).wait().tolist() == [1.0] * 3
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not between(nodes) and time.monotonic() < deadline:
            time.sleep(0.01)
        seen = [between(nodes)] if session.rank == 0 else []
        enough = torch.zeros(1)
        while not enough.item():
            assert time.monotonic() < deadline, between(nodes)
            assert session.all_reduce(torch.ones(ELEMENTS)).wait().mean().item() == 1.0
            here = session.rank == 0 and sum(between(nodes).values()) >= wanted
            enough = session.all_reduce(torch.tensor([float(here)]), op="sum").wait()
        seen += [between(nodes)] if session.rank == 0 else []
        for _ in range(10):
            session.all_reduce(torch.ones(ELEMENTS)).wait()
        seen += [between(nodes)] if session.rank == 0 else []
        # Who leaves takes the connections along.
        session.all_reduce(torch.ones(1)).wait()
        return seen

    return work


def counted(
    nodes: Cluster,
    wanted: int,
    threads_over: Callable[[Sequence[str]], InThreads],
) -> list[Counter[str]]:
    first, *_ = threads_over(nodes.addresses)((1, 1), counts(nodes, wanted))
    return first


@pytest.mark.case("P04")
@pytest.mark.parametrize("connections", [1, 4])
def test_two_daemons_have_as_many_connections_as_were_asked_for_and_keep_them(
    connections: int, threads_over: Callable[[Sequence[str]], InThreads]
) -> None:
    with cluster(2, {"GRADWIRE_CONNECTIONS": str(connections)}) as nodes:
        small, warm, late = counted(nodes, connections, threads_over)
        assert [sum(each.values()) for each in (small, warm, late)] == [1, *[connections] * 2]


def test_connections_use_every_address_that_is_advertised(
    threads_over: Callable[[Sequence[str]], InThreads],
) -> None:
    settings = {"GRADWIRE_LISTEN": "127.0.0.1:0,127.0.0.2:0", "GRADWIRE_CONNECTIONS": "4"}
    with cluster(2, settings) as nodes:
        _, _, late = counted(nodes, 4, threads_over)
        addresses = query.describe(nodes.addresses[1]).addresses
        assert [address.split(":")[0] for address in addresses] == ["127.0.0.1", "127.0.0.2"]
        assert late == dict.fromkeys(addresses, 2)


def test_hosts_that_are_advertised_get_the_port_that_is_listened_on(
    threads_over: Callable[[Sequence[str]], InThreads],
) -> None:
    settings = {
        "GRADWIRE_LISTEN": "0.0.0.0:0",
        "GRADWIRE_INSECURE": "1",
        "GRADWIRE_ADVERTISE": "127.0.0.1,127.0.0.2,127.0.0.3",
        "GRADWIRE_CONNECTIONS": "3",
    }
    with cluster(2, settings) as nodes:
        _, _, late = counted(nodes, 3, threads_over)
        hosts = [address.split(":")[0] for address in late]
        assert sorted(hosts) == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
        assert len({address.split(":")[1] for address in late}) == 1


def test_status_tells_how_many_connections_there_are(
    threads_over: Callable[[Sequence[str]], InThreads],
) -> None:
    with cluster(2, {"GRADWIRE_CONNECTIONS": "3"}) as nodes:

        def work(session: gradwire.Session) -> list[int]:
            deadline = time.monotonic() + PATIENCE_SECONDS
            for _ in range(3):
                session.all_reduce(torch.ones(ELEMENTS)).wait()
            said = 0
            while said < 3 and time.monotonic() < deadline:
                (job,) = query.status(nodes.addresses[session.rank]).jobs
                (link,) = job.links
                said = link.connections
                time.sleep(0.01)
            return [said]

        assert threads_over(nodes.addresses)((1, 1), work) == [[3], [3]]
