"""Fakes for tests: ours, and those of whoever writes a schedule or a transport."""

from __future__ import annotations

import asyncio
import functools
import operator
import random
import selectors
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, assert_never

from gradwire_server.errors import ProtocolError
from gradwire_server.reduce.effects import Add, Done, Effect, Finish, Fold, Frame, Send, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from gradwire_server.reduce.effects import Reducer

T = TypeVar("T")
V = TypeVar("V")


class Simulation(Generic[V]):
    """All nodes' reducers over a lossless network, in one thread.

    Delivery is shuffled, from the seed, across sources; frames of one source to one target keep
    their order. Nodes start at shuffled times, too, and hear nothing before.
    `sums[node][share]` are values of any kind; `add` and `finish` return new ones.
    """

    def __init__(
        self,
        reducers: Sequence[Reducer],
        sums: Sequence[Sequence[V]],
        seed: int,
        add: Callable[[V, V], V] = operator.add,
        finish: Callable[[V], V] = lambda value: value,
    ) -> None:
        self.sums = [list(shares) for shares in sums]
        self.effects: list[list[Effect]] = [[] for _ in reducers]
        """What each node did, in order."""
        self._reducers = reducers
        self._add = add
        self._finish = finish
        self._random = random.Random(seed)  # noqa: S311 - an order of delivery, not a secret
        self._waiting = set(range(len(reducers)))
        self._links: dict[tuple[int, int], deque[tuple[Send, V]]] = {}
        self._folded: set[tuple[int, int]] = set()
        """Node and share: what was being sent of it stays as it was."""
        self._payloads: list[dict[Frame, V]] = [{} for _ in reducers]

    def run(self) -> list[list[V]]:
        """Every node's final shares. Raises ProtocolError where a schedule breaks a promise."""
        while moves := self._moves():
            self._random.choice(moves)()
        undone = [node for node, said in enumerate(self.effects) if said[-1:] != [Done()]]
        if undone:
            raise ProtocolError(f"expected all nodes to be done, but {undone} wait for frames")
        return self.sums

    def _moves(self) -> list[Callable[[], None]]:
        starts = [partial(self._start, node) for node in sorted(self._waiting)]
        deliveries = [
            partial(self._deliver, *link)
            for link, queue in self._links.items()
            if queue and link[1] not in self._waiting
        ]
        return [*starts, *deliveries]

    def _start(self, node: int) -> None:
        self._waiting.remove(node)
        self._apply(node, self._reducers[node].start())

    def _deliver(self, source: int, target: int) -> None:
        send, payload = self._links[source, target].popleft()
        moved = self.sums[source][send.share] is not payload
        if moved and (source, send.share) not in self._folded:
            # An engine sends a share from where it stands, some time after it was told to.
            raise ProtocolError(f"node {source} changed a share before it was sent: {send}")
        frame = Frame(source, send.step, send.share)
        self._payloads[target][frame] = payload
        self._apply(target, self._reducers[target].receive(frame))

    def _apply(self, node: int, effects: list[Effect]) -> None:
        for effect in effects:
            if self.effects[node][-1:] == [Done()]:
                raise ProtocolError(f"node {node} is done, but goes on with {effect}")
            self.effects[node].append(effect)
            self._carry_out(node, effect)

    def _carry_out(self, node: int, effect: Effect) -> None:
        sums, payloads = self.sums[node], self._payloads[node]
        match effect:
            case Send(target=target, share=share):
                self._links.setdefault((node, target), deque()).append((effect, sums[share]))
            case Add(frame=frame):
                sums[frame.share] = self._add(sums[frame.share], payloads.pop(frame))
            case Fold(frames=frames):
                self._fold(node, frames)
            case Store(frame=frame):
                sums[frame.share] = payloads.pop(frame)
            case Finish(share=share):
                sums[share] = self._finish(sums[share])
            case Done():
                if payloads:
                    raise ProtocolError(f"node {node} is done, but did not use {set(payloads)}")
            case _:
                assert_never(effect)

    def _fold(self, node: int, frames: tuple[Frame, ...]) -> None:
        share, parts = frames[0].share, {node: self.sums[node][frames[0].share]}
        parts |= {frame.source: self._payloads[node].pop(frame) for frame in frames}
        first, *others = (parts[source] for source in sorted(parts))
        self.sums[node][share] = functools.reduce(self._add, others, first)
        self._folded.add((node, share))


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when there is nothing else to do.

    A minute's timeout passes at once, and after everything that could still have happened. Not
    for work in threads or on sockets: the clock would not wait for it.
    """

    def __init__(self) -> None:
        self._timers = _JumpingSelector()
        super().__init__(self._timers)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._timers.now


class _JumpingSelector(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self.now += max(0.0, timeout)
        return ready


async def virtual_seconds(seconds: float) -> None:
    """Let this much time pass, if the loop is one of virtual time."""
    await asyncio.sleep(seconds)


def run(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run in virtual time; raises TimeoutError after an hour of it.

    Raises AssertionError, too, where the coroutine leaves tasks behind.
    """

    async def bounded() -> T:
        async with asyncio.timeout(3600):
            result = await main
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            raise AssertionError(f"left running: {left}")
        return result

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(bounded())
