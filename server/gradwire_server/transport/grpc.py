"""Links over gRPC: one or more streams a pair of nodes, opened by the node of lower index."""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING

from gradwire_server.errors import LostError, ProtocolError, StrangerError
from gradwire_server.logs import about
from gradwire_server.transport.credentials import PLAIN
from gradwire_server.transport.dialling import Dialler
from gradwire_server.transport.greeting import Greeting
from gradwire_server.transport.link import Link
from gradwire_server.transport.precedence import ALONE
from gradwire_server.transport.stripes import AUTO, MOST_LANES
from gradwire_server.transport.vigil import Limits
from gradwire_server.transport.watch import Status, Watch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gradwire_proto.v1 import aggregator_pb2
    from gradwire_proto.v1 import peer_pb2 as pb
    from gradwire_server.group import Group
    from gradwire_server.metrics import Metrics
    from gradwire_server.round import Key
    from gradwire_server.transport.base import Message, PostReceiver
    from gradwire_server.transport.credentials import Plain
    from gradwire_server.transport.lane import Read, Write
    from gradwire_server.transport.precedence import Standing

log = logging.getLogger(__name__)

GOODBYE_SECONDS = 2.0

DEFAULT_TIMEOUT_SECONDS = 60.0


class GrpcTransport:
    """See transport.base.Transport."""

    def __init__(  # noqa: PLR0913 - what links are made of; Job puts it together
        self,
        group: Group,
        chunk_bytes: int,
        receiver: PostReceiver,
        metrics: Metrics,
        connections: int = AUTO,
        standing: Standing = ALONE,
        *,
        attempt: int = 0,
        resume_seconds: float = 0.0,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        most_untold: int = 3,
        credentials: Plain = PLAIN,
        job: str = "",
    ) -> None:
        """A node is told at once of settled rounds, where it was not told of so many."""
        self.ready = asyncio.Event()
        """Set once `progress` says all: before that no node is greeted, and none answered."""
        self.progress: list[aggregator_pb2.Progress] = []
        """Of this node's ranks, in attempts after the first."""
        self.standing: dict[int, list[aggregator_pb2.Progress]] = {}
        """What the nodes that are linked said of theirs."""
        self.credentials = credentials
        """See Home."""
        self._group = group
        self._chunk_bytes = chunk_bytes
        self._receiver = receiver
        self._metrics = metrics
        self._connections = connections
        self._precedence = standing
        self._limits = Limits.of(timeout_seconds, resume_seconds)
        self._most_untold = most_untold
        self._greeting = Greeting(group, chunk_bytes, attempt, job)
        self._outrun = attempt
        self._links: dict[int, Link] = {}
        self._met: dict[int, Link] = {}
        """Those, and the ones to which lane 0 has not come yet."""
        self._changed = asyncio.Event()
        self._dials: dict[int, asyncio.Task[None]] = {}
        self._trouble: dict[int, str] = {}
        self._settled: Key | None = None
        self._closing = False
        metrics.links.add(self, self._figures)
        if not attempt:
            self.ready.set()

    def dial(self) -> None:
        """Open the streams that are this node's to open, and keep trying."""
        higher = [peer for peer in self._group.peers if peer > self._group.node]
        self._dials = {peer: asyncio.create_task(self._dial(peer)) for peer in higher}

    async def _dial(self, peer: int) -> None:
        await self.ready.wait()
        node = self._group.picture.nodes[peer]
        dialler = Dialler(peer, node, self._greeting, self, self._limits)
        await dialler.run(self._connections)

    async def linked(self, timeout_seconds: float) -> None:
        """Return once all nodes are linked; raise LostError, with what is in the way, if not.

        Raises the job's own failure where it fails meanwhile.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                # A node without others has yet to know where all of its own ranks are.
                while self._unlinked() or not self.ready.is_set():
                    if self._group.failure is not None:
                        raise self._group.failure
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            others = [self._describe(peer) for peer in self._unlinked()]
            missing = "; ".join(others) or f"its own ranks {self._group.absent}"
            raise LostError(
                f"node {self._group.node} waited {timeout_seconds:g} s for {missing}"
            ) from None

    def wake(self) -> None:
        """All local ranks have come; or the job has failed, and nobody need wait any more."""
        self._changed.set()

    def status(self) -> dict[int, Status]:
        """How the link to each peer is."""
        return {
            peer: link.status if (link := self._links.get(peer)) is not None else Status()
            for peer in self._group.peers
        }

    def _figures(self) -> list[tuple[str, Status]]:
        nodes = self._group.picture.nodes
        return [(nodes[peer].address, link.status) for peer, link in tuple(self._met.items())]

    def clock_offsets(self) -> dict[int, int]:
        """Of peers whose clock is known: theirs less this node's, in nanoseconds."""
        offsets = {peer: link.clock_offset_ns for peer, link in self._links.items()}
        return {peer: offset for peer, offset in offsets.items() if offset is not None}

    async def send(self, target: int, message: Message) -> None:
        """See transport.base.Transport."""
        if (link := self._links.get(target)) is not None:
            await link.send(message)

    def settle(self, before: Key) -> None:
        """See transport.base.Transport."""
        self._settled = before if self._settled is None else max(before, self._settled)
        for link in self._links.values():
            link.settle(before)

    def post(self, target: int, note: aggregator_pb2.Note, payload: memoryview) -> None:
        """See office.Roads."""
        if (link := self._links.get(target)) is not None:
            link.post(note, payload)

    async def close(self) -> None:
        """See transport.base.Transport."""
        self._closing = True
        try:
            # Before a goodbye was read, a cancelled call could overtake it.
            async with asyncio.timeout(GOODBYE_SECONDS):
                await asyncio.gather(*(link.part() for link in self._links.values()))
        except TimeoutError:
            extra = about(self._group.picture.generation)
            log.info("a peer did not take its goodbye", extra=extra)
        await self.abandon()

    async def abandon(self) -> None:
        """End all links at once, without goodbyes: another attempt takes over."""
        self._closing = True
        self.ready.set()
        for task in self._dials.values():
            task.cancel()
        await asyncio.gather(*self._dials.values(), return_exceptions=True)
        for link in self._met.values():
            await link.close()
        self._metrics.links.drop(self)

    # -- accepting

    def vouch(self, node: int, caller: str, shown: Mapping[str, Iterable[bytes]]) -> None:
        """Raise StrangerError where a caller is not the node that it says it is."""
        nodes = self._group.picture.nodes
        if node >= len(nodes):
            return  # `accept` refuses it.
        try:
            self.credentials.vouch(nodes[node], shown)
        except StrangerError as error:
            subject = about(self._group.picture.generation)
            log.warning("refused a link from %s: %s", caller, error, extra=subject)
            self.hindered(node, f"{caller} was refused: {error}", final=False)
            raise

    async def accept(self, hello: pb.Hello, read: Read, write: Write) -> None:
        """Serve a stream that a node of lower index has opened; returns when it ends."""
        self._greeting.check(hello, range(self._group.node))
        if hello.attempt > self._greeting.attempt:
            self.outrun(hello.attempt)
            return
        if hello.attempt < self._greeting.attempt:
            await write(self._greeting.first(()))
            return
        if not self.ready.is_set():
            await self.ready.wait()
            if self._closing:
                # The attempt ended before it began.
                return
        if hello.over:
            self._known(hello, "what is given up").lose(f"it gave the link up: {hello.over}")
        elif hello.pulse:
            await self._accept_pulse(hello, read, write)
        elif hello.again or hello.lane:
            await self._accept_lane(hello, read, write)
        else:
            await self._accept_first(hello, read, write)

    async def _accept_first(self, hello: pb.Hello, read: Read, write: Write) -> None:
        link = self._met.get(hello.node)
        if link is None:
            link = self._make(hello.node)
        # It may be that the other side has not had our answer, and knows of no link.
        elif link.lost or not (self._limits.resumes and link.fresh):
            raise ProtocolError(f"node {hello.node} is linked already")
        self.standing[hello.node] = list(hello.progress)
        await link.free(0)
        await write(self._greeting.first(self.progress, key=link.key))
        self._enter(hello.node, link)
        await link.serve(0, read, write)

    async def _accept_pulse(self, hello: pb.Hello, read: Read, write: Write) -> None:
        link = self._known(hello, "the pulse")
        await write(self._greeting.pulse())
        await link.pulse.serve(read, write)

    async def _accept_lane(self, hello: pb.Hello, read: Read, write: Write) -> None:
        number = hello.lane
        link = self._known(hello, f"lane {number}")
        unknown = number >= MOST_LANES or (hello.again and not self._limits.resumes)
        # Of a lane that goes on, it may be that the first hello has not come.
        if unknown or not (link.claim(number) or hello.again):
            raise ProtocolError(f"node {hello.node} can't have another lane {number}")
        if hello.again:
            answer = self._greeting.again(number, await link.free(number))
        else:
            answer = self._greeting.another(number, 0, b"")
        await write(answer)
        await link.serve(number, read, write, hello.heard)

    def _known(self, hello: pb.Hello, what: str) -> Link:
        """The link that a hello shows the key of."""
        link = self._links.get(hello.node)
        if link is None or not secrets.compare_digest(link.key, hello.key):
            raise ProtocolError(f"node {hello.node} has no link that {what} is of")
        if link.lost:
            raise ProtocolError(f"node {self._group.node} has given the link up: {link.lost}")
        if not link.up:
            raise ProtocolError(f"node {hello.node} has no link that {what} is of")
        link.greeted()
        return link

    # -- dialling.Home

    def meet(self, peer: int, hello: pb.Hello) -> Link:
        """See Home."""
        self.standing[peer] = list(hello.progress)
        link = self._make(peer)
        self._enter(peer, link)
        return link

    def hindered(self, peer: int, trouble: str, *, final: bool) -> None:
        """See Home."""
        self._trouble[peer] = trouble
        if final and not self._closing:
            self._receiver.lost(peer, trouble)

    def outrun(self, attempt: int) -> None:
        """See Home."""
        if attempt > self._outrun:
            self._outrun = attempt
            self._receiver.outrun(attempt)

    def _make(self, peer: int) -> Link:
        address = self._group.picture.nodes[peer].address
        link = self._met[peer] = Link(
            peer,
            f"node {peer} at {address}",
            self._chunk_bytes,
            self._receiver,
            Watch(peer, self._precedence, self._group.picture.generation),
            self._precedence,
            self._limits,
            self._most_untold,
        )
        link.closing = self._closing
        return link

    def _enter(self, peer: int, link: Link) -> None:
        """A node is linked. From now on messages are queued, though lane 0 has yet to come."""
        link.lane(0)
        if self._settled is not None:
            link.settle(self._settled)
        self._links[peer] = link
        self._changed.set()

    def _unlinked(self) -> list[int]:
        return [peer for peer in self._group.peers if peer not in self._links]

    def _describe(self, peer: int) -> str:
        default = "nothing has come from it" if peer < self._group.node else "no answer"
        trouble = self._trouble.get(peer, default)
        return f"{self._group.picture.describe(peer)}: {trouble}"
