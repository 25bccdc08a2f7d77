"""Assaults on the port for other daemons. Each says how many messages it has sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwire_proto import PROTOCOL, wire
from gradwire_proto.v1 import aggregator_pb2, peer_pb2
from gradwire_server.errors import LostError, MismatchError
from gradwire_server.round import Key, Spec
from gradwire_server.transport import frames
from gradwire_server.transport.assembly import Skip
from gradwire_server.transport.base import Abort, Left, Part
from gradwire_server.transport.frames import Goodbye, Ping, Pong
from gradwire_server.transport.journal import Tally
from gradwire_server.transport.settled import Told
from hostile.mutations import damaged, disordered, extreme, noise
from hostile.ranks import FIFTY, MEAN
from hostile.seats import SECONDS, Line, Target

if TYPE_CHECKING:
    import random


Failure = aggregator_pb2.Failure
EXCHANGE = "Peer/Exchange"
NOTHING = memoryview(b"")


def strangers(draw: random.Random, target: Target, generation: str) -> int:
    """A hello for somebody else's job, or for none, and behind it what would harm that."""
    hello = _hello(target, generation)
    if draw.random() < 0.7:
        # A link that is there, and shown with a key that is not its own.
        hello.key, hello.lane = draw.randbytes(16), draw.randrange(70)
        hello.node, hello.again = draw.randrange(3), draw.random() < 0.5
    if draw.random() < 0.5:
        strange = extreme(draw, hello)
        # Which attempt a generation is at is believed whoever knows its name.
        strange.attempt = hello.attempt
        hello = strange
    if not hello.generation.startswith(generation):
        hello.generation = generation
    first = peer_pb2.Frame(hello=hello).SerializeToString()
    poison = _sealed(1, frames.short(Abort(None, _over())))
    messages = [first if draw.random() < 0.8 else damaged(draw, first), poison, noise(draw)]
    target.stream(EXCHANGE, messages)
    return len(messages)


def members(draw: random.Random, target: Target) -> int:
    """The other daemon of a job of two nodes breaks the rules, at once or later."""
    request = target.request(1, [0], [1])
    joining = target.stub.Join.future(request, timeout=SECONDS)
    link = Line(target.channel, EXCHANGE)
    hello = _hello(target, request.generation)
    link.say(peer_pb2.Frame(hello=hello).SerializeToString())
    link.hear()
    seat = joining.result().seat
    rank = Line(target.channel, "Aggregator/Reduce")
    rank.say(aggregator_pb2.ReduceRequest(seat=seat).SerializeToString())
    for sequence in range(2):
        brought = aggregator_pb2.ReduceRequest(sequence=sequence, spec=MEAN, weight=1.0)
        rank.say(wire.join(brought, FIFTY))
    said = [_said(draw, *each) for each in disordered(draw, list(enumerate(_talk(), 1)))]
    link.say(*said)
    link.end()
    rank.break_off()
    target.leave(seat)
    return len(said) + 4


def _hello(target: Target, generation: str) -> peer_pb2.Hello:
    return peer_pb2.Hello(
        protocol=PROTOCOL,
        generation=generation,
        node=0,
        chunk_bytes=target.described.chunk_bytes,
    )


def _talk() -> list[tuple[peer_pb2.Frame, memoryview]]:
    """What a node says that keeps the rules, more or less: all kinds of frames."""
    spec = Spec.read(MEAN)
    shares = [
        Part(Key(n, 0), schedule, step, share, 1.0, spec, (FIFTY[:100],))
        for n in range(2)
        for schedule in (peer_pb2.SCHEDULE_RING, peer_pb2.SCHEDULE_ONE_SHOT)
        for step, share in ((0, 0), (1, 1))
    ]
    openings = [
        (frames.opening(part, number, 0, 100 + 28 * (number % 3)), part.pieces[0])
        for number, part in enumerate(shares, 1)
    ]
    note = aggregator_pb2.Note(source=0, target=1, number=1)
    note.offer.size = 50
    mismatch = MismatchError("round 1: for fun").failure(Failure.SCOPE_ROUND)
    shorts = (Ping(), Pong(), Abort(1, mismatch), Skip(2), Left(0, 1), Abort(None, _over()))
    return [
        *openings,
        (frames.piece(2, 64), FIFTY[:28]),
        (frames.posted(note), FIFTY[:50]),
        *((frames.short(each), NOTHING) for each in (*shorts, Goodbye())),
    ]


def _said(draw: random.Random, index: int, framed: tuple[peer_pb2.Frame, memoryview]) -> bytes:
    """One of these as it is, damaged, or with a good checksum over a field that is not."""
    frame, payload = framed
    match draw.randrange(8):
        case 0:
            return damaged(draw, _sealed(index, frame, payload))
        case 1:
            return _sealed(index, extreme(draw, frame), payload)
        case 2:
            tally = Tally(draw.randrange(index + 3), draw.randrange(3), again=True)
            return frames.tally(tally, Told())
        case 3:
            return _sealed(index, frame, payload[: draw.randrange(len(payload) + 1)])
        case _:
            return _sealed(index, frame, payload)


def _sealed(index: int, frame: peer_pb2.Frame, payload: memoryview = NOTHING) -> bytes:
    frame.index = index
    return wire.seal(frame, payload)


def _over() -> aggregator_pb2.Failure:
    return LostError("for fun").failure(Failure.SCOPE_JOB)
