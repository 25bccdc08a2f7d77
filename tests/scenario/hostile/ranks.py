"""Assaults on what ranks may call. Each says how many messages it has sent."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from gradwire_proto import wire
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_proto.v1 import tensor_pb2
from hostile.mutations import damaged, disordered, extreme, noise
from hostile.seats import Line, Target

if TYPE_CHECKING:
    import random

    from google.protobuf.message import Message

UNARY = ("Describe", "Join", "Leave", "Status", "ReadResiduals")
STREAMS = ("Aggregator/Reduce", "Aggregator/Post", "Aggregator/WriteResiduals")
PACKETS_A_LINE = 6

MEAN = tensor_pb2.Spec(
    op=tensor_pb2.OP_MEAN,
    dtype=tensor_pb2.DTYPE_FLOAT32,
    elements=50,
    wire=tensor_pb2.WIRE_EXACT,
)
FIFTY = memoryview(bytes(200))


def calls(draw: random.Random, target: Target) -> int:
    """Single calls, from somebody without a seat."""
    request = target.request(0, [0])
    request.connect_timeout.FromMilliseconds(100)
    method = draw.choice(UNARY)
    if method == "Join" and draw.random() < 0.5:
        request = extreme(draw, request)
        target.unary(method, request.SerializeToString())
    else:
        target.unary(method, damaged(draw, request.SerializeToString()))
    return 1


def seatless(draw: random.Random, target: Target) -> int:
    """Streams of somebody without a seat."""
    first = pb.ReduceRequest(seat=draw.choice(("", "0" * 32, "x"))).SerializeToString()
    messages = [draw.choice((first, noise(draw))), *(noise(draw) for _ in range(3))]
    target.stream(draw.choice(STREAMS), messages)
    return len(messages)


def chunks(draw: random.Random, target: Target) -> int:
    """A rank of a job of its own brings what makes no sense."""
    with target.seat(target.request(0, [0])) as seat:
        good = [
            pb.ReduceRequest(sequence=n, spec=MEAN, weight=1.0)
            for n in range(draw.randrange(1, 8))
        ]
        said = [_said(draw, request, FIFTY) for request in disordered(draw, good)]
        first = pb.ReduceRequest(seat=seat.seat).SerializeToString()
        return _talk(target, "Aggregator/Reduce", [first, *said])


def letters(draw: random.Random, target: Target) -> int:
    """A rank writes letters that make no sense to another rank of its job."""
    one, other = target.request(0, [0, 1]), target.request(1, [0, 1])
    other.generation = one.generation
    with target.seat(one) as seat, target.seat(other):
        good = [
            pb.Note(source=0, target=1, number=1, offer=pb.Offer(tag=3, size=50)),
            pb.Note(source=0, target=1, number=2, offer=pb.Offer(size=500_000)),
            pb.Note(source=0, target=1, number=2, page=pb.Page(offset=0)),
            pb.Note(source=0, target=1, number=1, withdrawal=pb.Withdrawal()),
            pb.Note(source=0, target=1, number=1, receipt=pb.Receipt(size=50)),
            pb.Note(source=0, target=1, number=1, refusal=pb.Refusal()),
        ]
        few = disordered(draw, good[: draw.randrange(1, len(good) + 1)])
        said = [_said(draw, pb.PostRequest(note=note), FIFTY[:50]) for note in few]
        first = pb.PostRequest(seat=seat.seat).SerializeToString()
        return _talk(target, "Aggregator/Post", [first, *said])


def residuals(draw: random.Random, target: Target) -> int:
    """Residuals that fit nothing."""
    with target.seat(target.request(0, [0])) as seat:
        head = pb.Residual(identity=7, elements=50, counts=[1], size=200, geometry=1)
        good = [
            pb.WriteResidualsRequest(residual=head),
            pb.WriteResidualsRequest(residual=pb.Residual(payload=bytes(200))),
        ]
        said = [_said(draw, request, FIFTY[:0]) for request in disordered(draw, good)]
        first = pb.WriteResidualsRequest(seat=seat.seat).SerializeToString()
        target.stream("Aggregator/WriteResiduals", [first, *said])
        asked = pb.ReadResidualsRequest(seat=seat.seat, revoked=[1, 7])
        target.unary("ReadResiduals", extreme(draw, asked).SerializeToString())
        return len(said) + 2


def rings(draw: random.Random, target: Target) -> int:
    """Rings at the doorbell, of somebody with a seat or without one."""
    with target.seat(target.request(0, [0], memory=True)) as seat:
        first = pb.Ring(seat=seat.seat if draw.random() < 0.7 else "0" * 32)
        good = [
            pb.Ring(ready=draw.choice((0, 1, 9, 1 << 63))),
            pb.Ring(beyond=draw.choice((0, 3, 1 << 63))),
            pb.Ring(disagreement=pb.Disagreement(sequence=0, mine=MEAN, theirs=MEAN)),
            pb.Ring(weightless=draw.choice((0, 1 << 63))),
        ]
        few = draw.choices(good, k=PACKETS_A_LINE)
        said = [_said(draw, ring, FIFTY[:0]) for ring in few]
        _ring(seat.arena.doorbell, [first.SerializeToString(), *said])
        return len(said) + 1


def _said(draw: random.Random, message: Message, payload: memoryview) -> bytes:
    """A message as it is, with a strange field, or damaged."""
    match draw.randrange(4):
        case 0:
            return wire.join(message, payload)
        case 1:
            return damaged(draw, wire.join(message, payload))
        case _:
            short = payload[: draw.choice((0, 1, len(payload)))]
            return wire.join(extreme(draw, message), short)


def _talk(target: Target, method: str, messages: list[bytes]) -> int:
    line = Line(target.channel, method)
    line.say(*messages)
    line.end()
    return len(messages)


def _ring(bell: str, packets: list[bytes]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as visitor:
        visitor.settimeout(1.0)
        visitor.connect(bell)
        with suppress(OSError):
            for packet in packets:
                visitor.send(packet)
