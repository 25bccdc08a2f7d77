"""Messages between daemons as protobuf frames, and back."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, assert_never

from gradwire_proto import nonfinite, wire
from gradwire_proto.v1 import peer_pb2 as pb
from gradwire_server.errors import CorruptedError, ProtocolError
from gradwire_server.round import Key, Spec
from gradwire_server.transport.assembly import Opening, Piece, Skip
from gradwire_server.transport.base import Abort, Left, Part
from gradwire_server.transport.journal import Tally

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradwire_proto.v1 import aggregator_pb2
    from gradwire_server.transport.settled import Told


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks for a Pong."""

    nanoseconds: int = 0
    """Of the speaker's monotonic clock, where it wants to compare clocks."""


@dataclass(frozen=True, slots=True)
class Pong:
    """Answers a Ping. Nanoseconds, where clocks are compared: see clocks."""

    asked: int = 0
    heard: int = 0
    answered: int = 0


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The last frame of a stream."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The speaker has the results of all rounds before this one."""

    sequence: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Posted:
    """A rank says something of a letter to another node's rank."""

    note: aggregator_pb2.Note
    payload: memoryview


Short: TypeAlias = Abort | Left | Skip | Ping | Pong | Goodbye
"""What has no payload."""

Heard: TypeAlias = Opening | Piece | Posted | Settled | Short


def short(message: Short) -> pb.Frame:
    """The frame of a message without a payload."""
    match message:
        case Abort():
            abort = pb.Abort(failure=message.failure)
            if message.sequence is not None:
                abort.sequence = message.sequence
            return pb.Frame(abort=abort)
        case Left():
            return pb.Frame(left=pb.Left(rank=message.rank, sequences=message.sequences))
        case Skip():
            return pb.Frame(skip=pb.Skip(number=message.number))
        case Ping():
            return pb.Frame(ping=pb.Ping(nanoseconds=message.nanoseconds))
        case Pong():
            return pb.Frame(
                pong=pb.Pong(
                    asked_nanoseconds=message.asked,
                    heard_nanoseconds=message.heard,
                    answered_nanoseconds=message.answered,
                )
            )
        case Goodbye():
            return pb.Frame(goodbye=pb.Goodbye())
        case _:
            assert_never(message)


def opening(part: Part, number: int, after: int, size: int) -> pb.Frame:
    """The frame of a share's first piece, to be joined with it: it is handed over now."""
    share = pb.Share(
        sequence=part.key.sequence,
        chunk=part.key.chunk,
        schedule=part.schedule,
        step=part.step,
        index=part.share,
        weight=part.weight,
        spec=part.spec.write(),
        number=number,
        after=after,
        size=size,
        nonfinite=None if part.finding is None else part.finding.write(),
        sent_nanoseconds=time.monotonic_ns(),
    )
    return pb.Frame(share=share)


def piece(number: int, offset: int) -> pb.Frame:
    """The frame of a further piece, to be joined with it."""
    return pb.Frame(piece=pb.Piece(number=number, offset=offset))


def posted(note: aggregator_pb2.Note) -> pb.Frame:
    """The frame of a note, to be joined with its payload."""
    return pb.Frame(note=note)


def tally(said: Tally, settlement: Told) -> bytes:
    """The frame of a tally, whole."""
    frame = pb.Frame(index=said.index, heard=said.heard, tally=pb.Tally(again=said.again))
    if settlement.any:
        settlement.stamp(frame.tally)
    return wire.seal(frame, memoryview(b""))


def unseal(data: bytes) -> tuple[pb.Frame, memoryview]:
    """A frame, and its payload as a view.

    Raises CorruptedError where it is not as it was sent, ValueError where it is no frame.
    """
    if not wire.is_whole(data):
        raise CorruptedError(
            f"{_name(data)}, {len(data)} bytes, came with another checksum than it left with"
        )
    return wire.split(data, pb.Frame)


def read_tally(frame: pb.Frame) -> Tally:
    """What a tally says."""
    return Tally(frame.index, frame.heard, frame.tally.again)


def settled(frame: pb.Frame) -> Settled | None:
    """What a tally says beside, if anything."""
    said = frame.tally
    if not said.settled_sequence and not said.settled_chunk:
        return None
    return Settled(said.settled_sequence, said.settled_chunk)


def read(kind: str | None, frame: pb.Frame, payload: memoryview) -> Heard:
    """What a frame of another kind says; ValueError or ProtocolError if it makes no sense."""
    if kind is None or kind not in _READERS:
        raise ProtocolError(f"expected a share, note, abort, left or goodbye, got {kind}")
    return _READERS[kind](frame, payload)


def _name(data: bytes) -> str:
    """What a damaged frame seems to be."""
    try:
        frame, _ = wire.split(data, pb.Frame)
    except ValueError:
        return "a frame"
    if frame.WhichOneof("kind") != "share":
        return f"a {frame.WhichOneof('kind') or 'frame'}"
    return f"a share of what seems round {frame.share.sequence}, chunk {frame.share.chunk}"


def _opening(frame: pb.Frame, payload: memoryview) -> Opening:
    share = frame.share
    part = Part(
        Key(share.sequence, share.chunk),
        share.schedule,
        share.step,
        share.index,
        share.weight,
        Spec.read(share.spec),
        (payload,),
        nonfinite.read(share.nonfinite) if share.HasField("nonfinite") else None,
        share.sent_nanoseconds,
    )
    settled = (share.settled_sequence, share.settled_chunk)
    return Opening(share.number, share.after, share.size, part, settled)


def _abort(frame: pb.Frame) -> Abort:
    failure = frame.abort.failure
    return Abort(None if failure.scope == failure.SCOPE_JOB else frame.abort.sequence, failure)


def _pong(frame: pb.Frame) -> Pong:
    said = frame.pong
    return Pong(said.asked_nanoseconds, said.heard_nanoseconds, said.answered_nanoseconds)


_READERS: dict[str, Callable[[pb.Frame, memoryview], Heard]] = {
    "share": _opening,
    "piece": lambda frame, payload: Piece(frame.piece.number, frame.piece.offset, payload),
    "abort": lambda frame, _: _abort(frame),
    "left": lambda frame, _: Left(frame.left.rank, frame.left.sequences),
    "skip": lambda frame, _: Skip(frame.skip.number),
    "ping": lambda frame, _: Ping(frame.ping.nanoseconds),
    "pong": lambda frame, _: _pong(frame),
    "note": lambda frame, payload: Posted(frame.note, payload),
    "goodbye": lambda *_: Goodbye(),
}
