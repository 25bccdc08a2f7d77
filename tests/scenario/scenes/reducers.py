"""All nodes' schedules of one chunk. A sum is written as who is in it, in order of adding."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, assert_never

from gradwire_server.reduce.choose import SCHEDULES, reducer
from gradwire_server.reduce.effects import Add, Done, Effect, Finish, Fold, Frame, Send, Store
from scenes.script import Scene, command

if TYPE_CHECKING:
    from collections.abc import Iterator


@command(r"(ring|tree|direct|one-shot) of (\d+) nodes")
class Reducers(Scene):
    """Frames lie on their links until they are delivered."""

    def __init__(self, schedule: str, nodes: int) -> None:
        self._reducers = [reducer(SCHEDULES[schedule], node, nodes) for node in range(nodes)]
        self._sums = [[str(node)] * self._reducers[node].shares for node in range(nodes)]
        self._links: dict[tuple[int, int], deque[tuple[Frame, str]]] = {}
        self._payloads: list[dict[Frame, str]] = [{} for _ in range(nodes)]
        self._last: dict[tuple[int, int], tuple[Frame, str]] = {}
        self._done: set[int] = set()
        self._dead: set[int] = set()

    @command(r"nodes? ([\d ]+) starts?")
    def start(self, nodes: str | int) -> Iterator[str]:
        for node in map(int, str(nodes).split()):
            yield from self._apply(node, self._reducers[node].start())

    @command(r"(\d+) to (\d+)")
    def deliver(self, source: int, target: int) -> Iterator[str]:
        self._last[source, target] = self._links[source, target].popleft()
        if target not in self._dead:
            yield from self._arrive(target, *self._last[source, target])

    @command(r"(\d+) to (\d+), again")
    def repeat(self, source: int, target: int) -> Iterator[str]:
        yield from self._arrive(target, *self._last[source, target])

    @command(r"(\d+) to (\d+), step (\d+), share (\d+)")
    def forge(self, source: int, target: int, step: int, share: int) -> Iterator[str]:
        yield from self._arrive(target, Frame(source, step, share), "?")

    @command(r"the rest arrives")
    def deliver_all(self) -> Iterator[str]:
        """Link by link, lowest source first, until nothing is on its way."""
        while ready := sorted(link for link, queue in self._links.items() if queue):
            yield from self.deliver(*ready[0])

    @command(r"node (\d+) dies")
    def die(self, node: int) -> Iterator[str]:
        self._dead.add(node)
        lost = [link for link, queue in self._links.items() if queue and node in link]
        for link in sorted(lost):
            yield f"{len(self._links.pop(link))} lost from {link[0]} to {link[1]}"

    @command(r"who waits\?")
    def waiting(self) -> Iterator[str]:
        for node in range(len(self._reducers)):
            if node not in self._done | self._dead:
                yield f"node {node} waits"

    @command(r"all results")
    def results(self) -> Iterator[str]:
        for node, sums in enumerate(self._sums):
            yield f"node {node}: {', '.join(sums)}"

    def _arrive(self, target: int, frame: Frame, payload: str) -> Iterator[str]:
        effects = self._reducers[target].receive(frame)
        self._payloads[target][frame] = payload
        yield from self._apply(target, effects)

    def _apply(self, node: int, effects: list[Effect]) -> Iterator[str]:
        for effect in effects:
            yield f"node {node} {self._carry_out(node, effect)}"

    def _carry_out(self, node: int, effect: Effect) -> str:
        sums, payloads = self._sums[node], self._payloads[node]
        match effect:
            case Send(target=target, step=step, share=share):
                frame = Frame(node, step, share)
                self._links.setdefault((node, target), deque()).append((frame, sums[share]))
                return f"sends share {share} to {target}: {sums[share]}"
            case Add(frame=frame):
                sums[frame.share] += f"+{payloads.pop(frame)}"
                return f"adds share {frame.share} from {frame.source}: {sums[frame.share]}"
            case Fold(frames=frames):
                share = frames[0].share
                parts = {each.source: payloads.pop(each) for each in frames}
                parts[node] = sums[share]
                sums[share] = "+".join(parts[source] for source in sorted(parts))
                return f"folds share {share}: {sums[share]}"
            case Finish(share=share):
                sums[share] = f"[{sums[share]}]"
                return f"finishes share {share}: {sums[share]}"
            case Store(frame=frame):
                sums[frame.share] = payloads.pop(frame)
                return f"stores share {frame.share} from {frame.source}: {sums[frame.share]}"
            case Done():
                self._done.add(node)
                return "is done"
            case _:
                assert_never(effect)
