"""The faults: each strikes a running job and says when, whom, and for how long."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire_ops.drill_plan import (
    CORRUPT_CHUNK,
    KILL_DAEMON,
    KILL_RANK,
    PARTITION,
    RESET_LINK,
    SLOW_LINK,
    STOP_DAEMON,
)
from gradwire_ops.drill_verdict import Strike
from gradwire_ops.lab_plan import format_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from gradwire_ops.drill_job import Ranks
    from gradwire_ops.drill_nodes import Nodes
    from gradwire_ops.drill_plan import DrillPlan, Moment

DAMAGE_SECONDS = 10.0
"""How long a chunk that can be damaged is waited for."""
LOOK_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Scene:
    """What a fault may lay hands on."""

    plan: DrillPlan
    moment: Moment
    nodes: Nodes
    ranks: Ranks


def strike(fault: str, scene: Scene) -> Strike:
    """Do it; returns when it is over, and whatever it took away is back."""
    return _FAULTS[fault](scene)


def _kill_rank(scene: Scene) -> Strike:
    rank = scene.moment.pick(len(scene.plan.layout))
    began = time.monotonic()
    pid = scene.ranks.kill(rank)
    who = f"rank {rank} (pid {pid} "
    return Strike(began, began, (who,), f"SIGKILL to rank {rank}", victim=rank)


def _kill_daemon(scene: Scene) -> Strike:
    nodes, node = scene.nodes, scene.moment.pick(scene.plan.nodes)
    began = time.monotonic()
    nodes.daemons[node].signal(signal.SIGKILL)
    nodes.restart(node)
    ended = time.monotonic()
    text = f"SIGKILL to the daemon of node {node}, ready again after {ended - began:.1f} s"
    return Strike(began, ended, nodes.names(node), text)


def _stop_daemon(scene: Scene) -> Strike:
    node, seconds = scene.moment.pick(scene.plan.nodes), scene.moment.seconds
    daemon = scene.nodes.daemons[node]

    @contextmanager
    def stopped() -> Iterator[None]:
        daemon.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            daemon.signal(signal.SIGCONT)

    text = f"SIGSTOP to the daemon of node {node} for {seconds:.1f} s"
    began, ended = _last(stopped, seconds)
    return Strike(began, ended, scene.nodes.names(node), text)


def _reset_link(scene: Scene) -> Strike:
    node = _far_end(scene)
    began = time.monotonic()
    count = scene.nodes.relays[node].reset()
    text = f"{count} connections to node {node} reset"
    return Strike(began, began, _either_end(scene, node), text)


def _partition(scene: Scene) -> Strike:
    node, nodes = _far_end(scene), scene.nodes

    @contextmanager
    def apart() -> Iterator[None]:
        if nodes.lab:
            nodes.lab.unplug(node)
        else:
            nodes.relays[node].hold()
        try:
            yield
        finally:
            if nodes.lab:
                nodes.lab.plug_in(node)
            else:
                nodes.relays[node].release()

    began, ended = _last(apart, scene.moment.seconds)
    text = f"nothing to or from node {node} for {scene.moment.seconds:.1f} s"
    return Strike(began, ended, _either_end(scene, node), text)


def _slow_link(scene: Scene) -> Strike:
    node, nodes, rate = _far_end(scene), scene.nodes, scene.plan.rate

    def change(to: int | None) -> None:
        if nodes.lab:
            nodes.lab.change_rate(node, to)
        else:
            nodes.relays[node].slow_down(to)

    @contextmanager
    def slow() -> Iterator[None]:
        change(rate)
        try:
            yield
        finally:
            change(None)

    began, ended = _last(slow, scene.moment.seconds)
    text = f"node {node} at {format_rate(rate)} for {scene.moment.seconds:.1f} s"
    return Strike(began, ended, _either_end(scene, node), text)


def _corrupt_chunk(scene: Scene) -> Strike:
    node = _far_end(scene)
    relay = scene.nodes.relays[node]
    before, deadline = relay.damaged, time.monotonic() + DAMAGE_SECONDS
    relay.damage_one(scene.moment.place)
    while relay.damaged == before and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    began = relay.damaged_at if relay.damaged > before else time.monotonic()
    what = "a bit of a chunk flipped" if relay.damaged > before else "no chunk came by"
    text = f"{what} on the way to or from node {node}"
    return Strike(began, began, _either_end(scene, node), text)


def _far_end(scene: Scene) -> int:
    """A node that is reached through a relay: none but the first is not."""
    return scene.moment.pick(scene.plan.nodes, first=1)


def _either_end(scene: Scene, node: int) -> tuple[str, ...]:
    """Of a link, each end calls the other lost."""
    names = scene.nodes.names
    return tuple(name for end in range(node + 1) for name in names(end))


def _last(
    state: Callable[[], AbstractContextManager[None]], seconds: float
) -> tuple[float, float]:
    """Keep it for so long; when it began and ended."""
    with state():
        began = time.monotonic()
        time.sleep(seconds)
    return began, time.monotonic()


_FAULTS: dict[str, Callable[[Scene], Strike]] = {
    KILL_RANK: _kill_rank,
    KILL_DAEMON: _kill_daemon,
    STOP_DAEMON: _stop_daemon,
    RESET_LINK: _reset_link,
    PARTITION: _partition,
    SLOW_LINK: _slow_link,
    CORRUPT_CHUNK: _corrupt_chunk,
}
