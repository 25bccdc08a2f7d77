"""What we write is plain protobuf, and what plain protobuf writes we read."""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from array import array
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gradwire_proto import wire
from gradwire_proto.v1 import aggregator_pb2, peer_pb2, tensor_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

PAYLOADS = st.binary(max_size=400)


def request(sequence: int, chunk: int = 0) -> aggregator_pb2.ReduceRequest:
    spec = tensor_pb2.Spec(
        op=tensor_pb2.OP_MEAN, elements=77, shape_digest=1 << 31, shapes="7x11"
    )
    return aggregator_pb2.ReduceRequest(spec=spec, weight=0.5, sequence=sequence, chunk=chunk)


@given(sequence=st.integers(0, 2**64 - 1), chunk=st.integers(0, 2**32 - 1), payload=PAYLOADS)
def test_what_we_join_is_what_protobuf_would_write(
    sequence: int, chunk: int, payload: bytes
) -> None:
    message = request(sequence=sequence, chunk=chunk)
    joined = wire.join(message, memoryview(payload))
    message.payload = payload
    assert joined == message.SerializeToString()


@given(sequence=st.integers(0, 2**64 - 1), chunk=st.integers(0, 2**32 - 1), payload=PAYLOADS)
def test_what_protobuf_writes_we_split(sequence: int, chunk: int, payload: bytes) -> None:
    plain = request(sequence=sequence, chunk=chunk)
    full = request(sequence=sequence, chunk=chunk)
    full.payload = payload
    message, found = wire.split(full.SerializeToString(), aggregator_pb2.ReduceRequest)
    assert (message, bytes(found)) == (plain, payload)


@pytest.mark.parametrize("length", [1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_a_payload_of_any_length_survives(length: int) -> None:
    payload = b"\xa5" * length
    data = wire.join(peer_pb2.Frame(share=peer_pb2.Share(sequence=3)), memoryview(payload))
    assert peer_pb2.Frame.FromString(data).payload == payload
    assert wire.split(data, peer_pb2.Frame)[1] == payload


def test_the_payload_is_a_view_of_the_message() -> None:
    data = wire.join(request(sequence=1), memoryview(b"gradient"))
    _, payload = wire.split(data, aggregator_pb2.ReduceRequest)
    assert payload.obj is data


def test_a_payload_that_is_not_last_is_found_too() -> None:
    """Protobuf lets a writer put the fields in any order."""
    tail = request(sequence=9)
    data = (
        wire.join(aggregator_pb2.ReduceRequest(), memoryview(b"first"))
        + tail.SerializeToString()
    )
    message, payload = wire.split(data, aggregator_pb2.ReduceRequest)
    assert (message, bytes(payload)) == (tail, b"first")


@given(data=st.binary(max_size=60))
@example(b"\x7a\x05ab")  # a payload that is cut short
@example(b"\x7a" + b"\xff" * 9 + b"\x01")  # one of 2^64 - 1 bytes
@example(b"\x7a" + b"\xff" * 12)  # a length that never ends
@example(b"\x7b")  # a group, which proto3 lacks
@example(b"\x79\x00")  # field 15, but eight bytes wide, and cut short
@example(b"\x78\x05")  # field 15, but a number
@example(b"\x7a\x01a\x7a\x01b")  # two payloads: plain protobuf takes the last
def test_other_bytes_are_refused_or_mean_what_protobuf_says(data: bytes) -> None:
    try:
        message, payload = wire.split(data, aggregator_pb2.ReduceRequest)
    except ValueError:
        return
    message.payload = message.payload or bytes(payload)
    assert message == aggregator_pb2.ReduceRequest.FromString(data)


@given(cut=st.integers(0, 60), flip=st.integers(0, 255), payload=PAYLOADS)
def test_damaged_frames_raise_nothing_but_value_error(
    cut: int, flip: int, payload: bytes
) -> None:
    frame = peer_pb2.Frame(share=peer_pb2.Share(sequence=1 << 40, weight=2.0))
    data = bytearray(wire.join(frame, memoryview(payload)))
    position = cut % len(data)
    data[position] ^= flip
    for damaged in (bytes(data), bytes(data[:position])):
        with contextlib.suppress(ValueError):
            wire.split(damaged, peer_pb2.Frame)


ELEMENTS = 2_760_000
LONGEST_SECONDS = 0.05
"""Copying 11 MB takes a millisecond or two; packing every element by itself, hundreds."""


def quickest(call: Callable[[], object]) -> float:
    """Seconds, at best of several times."""

    def once() -> float:
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    return min(once() for _ in range(10))


@pytest.mark.case("P02")
def test_a_tensor_is_copied_into_a_message_once_and_not_at_all_out_of_it() -> None:
    payload = memoryview(array("f", [0.5]) * ELEMENTS).cast("B")
    message = request(sequence=1)
    data = wire.join(message, payload)
    assert quickest(lambda: wire.join(message, payload)) < LONGEST_SECONDS
    assert quickest(lambda: wire.split(data, aggregator_pb2.ReduceRequest)) < LONGEST_SECONDS
    tracemalloc.start()
    try:
        again = wire.join(message, payload)
        _, written = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        _, found = wire.split(data, aggregator_pb2.ReduceRequest)
        _, both = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (again, found) == (data, payload)
    assert found.obj is data
    assert len(data) <= written < 1.1 * len(data)
    assert both < 1.1 * len(data)
