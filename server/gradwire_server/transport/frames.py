"""Messages between daemons as protobuf frames, and back."""

from __future__ import annotations

from gradwire_proto import wire
from gradwire_proto.v1 import peer_pb2 as pb
from gradwire_server.errors import ProtocolError
from gradwire_server.round import Key, Spec
from gradwire_server.transport.base import Abort, Left, Message, Part


def encode(message: Message | None) -> bytes:
    """A message as a frame; None is the goodbye. One copy of the payload."""
    match message:
        case None:
            return pb.Frame(goodbye=pb.Goodbye()).SerializeToString()
        case Part():
            share = pb.Share(
                sequence=message.key.sequence,
                chunk=message.key.chunk,
                schedule=message.schedule,
                step=message.step,
                index=message.share,
                weight=message.weight,
                spec=message.spec.write(),
            )
            return wire.join(pb.Frame(share=share), message.payload)
        case Abort():
            abort = pb.Abort(failure=message.failure)
            if message.sequence is not None:
                abort.sequence = message.sequence
            return pb.Frame(abort=abort).SerializeToString()
        case Left():
            left = pb.Left(rank=message.rank, sequences=message.sequences)
            return pb.Frame(left=left).SerializeToString()


def decode(data: bytes) -> Message | None:
    """The message of a frame, its payload a view. Raises ValueError or ProtocolError."""
    frame, payload = wire.split(data, pb.Frame)
    match frame.WhichOneof("kind"):
        case "share":
            share = frame.share
            return Part(
                Key(share.sequence, share.chunk),
                share.schedule,
                share.step,
                share.index,
                share.weight,
                Spec.read(share.spec),
                payload,
            )
        case "abort":
            scope = frame.abort.failure.scope
            whole_job = scope == frame.abort.failure.SCOPE_JOB
            return Abort(None if whole_job else frame.abort.sequence, frame.abort.failure)
        case "left":
            return Left(frame.left.rank, frame.left.sequences)
        case "goodbye":
            return None
        case kind:
            raise ProtocolError(f"expected a share, abort, left or goodbye, got {kind}")
