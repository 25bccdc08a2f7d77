"""Session.send and receive, over real daemons: on one node, and between two."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch

import gradwire

if TYPE_CHECKING:
    from gradwire import Session

InThreads: TypeAlias = Callable[..., list[Any]]

LARGE = 64 << 20
"""Bytes."""

both_ways = pytest.mark.parametrize("layout", [(2,), (1, 1)], ids=["one node", "two nodes"])


def numbered(rank: int, size: int) -> torch.Tensor:
    return torch.arange(size, dtype=torch.int64) + (rank << 32)


@both_ways
def test_a_tensor_arrives_and_both_futures_say_so(
    in_threads: InThreads, layout: tuple[int, ...]
) -> None:
    def work(session: Session) -> Any:  # noqa: ANN401 - what the future holds
        if session.rank == 0:
            return session.send(numbered(0, 1000), 1, tag=7).wait()
        tensor = torch.empty(1000, dtype=torch.int64)
        source = session.receive(tensor, 0, tag=7).wait()
        assert torch.equal(tensor, numbered(0, 1000))
        return source

    assert in_threads(layout, work) == [None, 0]


@both_ways
def test_64_mib_arrive_both_ways_at_once(
    in_threads: InThreads, layout: tuple[int, ...]
) -> None:
    def work(session: Session) -> None:
        other = 1 - session.rank
        tensor = torch.empty(LARGE // 8, dtype=torch.int64)
        received = session.receive(tensor, other)
        session.send(numbered(session.rank, LARGE // 8), other).wait()
        assert received.wait() == other
        assert torch.equal(tensor, numbered(other, LARGE // 8))

    in_threads(layout, work)


@both_ways
def test_many_small_messages_arrive_in_order(
    in_threads: InThreads, layout: tuple[int, ...]
) -> None:
    count = 3000  # more than may be offered at once

    def work(session: Session) -> None:
        other = 1 - session.rank
        sent = [session.send(torch.tensor([n]), other, n % 2) for n in range(count)]
        for number in range(0, count, 2):
            for tag in (1, 0):
                tensor = torch.empty(1, dtype=torch.int64)
                session.receive(tensor, other, tag).wait()
                assert tensor.item() == number + tag
        for each in sent:
            each.wait()

    in_threads(layout, work)


@pytest.mark.parametrize("size", [8, 1 << 20], ids=["small", "large"])
def test_from_any_rank(in_threads: InThreads, size: int) -> None:
    def work(session: Session) -> None:
        if session.rank:
            session.send(numbered(session.rank, size), 0).wait()
            return
        sources = set()
        for _ in range(3):
            tensor = torch.empty(size, dtype=torch.int64)
            source = session.receive(tensor).wait()
            assert torch.equal(tensor, numbered(source, size))
            sources.add(source)
        assert sources == {1, 2, 3}

    in_threads((2, 2), work)


def test_ranks_without_shared_memory_send_too(
    in_threads: InThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWIRE_SHM", "off")

    def work(session: Session) -> None:
        assert session.path == "stream"
        other = 1 - session.rank
        tensor = torch.empty(1 << 18, dtype=torch.int64)
        received = session.receive(tensor, other)
        reduced = session.all_reduce(torch.full((1 << 20,), float(session.rank)))
        session.send(numbered(session.rank, 1 << 18), other).wait()
        assert received.wait() == other
        assert torch.equal(reduced.wait(), torch.full((1 << 20,), 0.5))

    in_threads((2,), work)


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


def test_every_dtype_and_shape(in_threads: InThreads) -> None:
    shapes: tuple[tuple[int, ...], ...] = ((), (0,), (3, 0, 2), (5, 7))

    def work(session: Session) -> None:
        for dtype in DTYPES:
            for shape in shapes:
                pattern = (torch.arange(35).view(5, 7) % 2).to(dtype)
                tensor = pattern if shape == (5, 7) else pattern.new_ones(shape)
                if session.rank == 0:
                    session.send(tensor.requires_grad_(requires_grad(dtype)), 1).wait()
                    continue
                got = torch.empty(shape, dtype=dtype)
                session.receive(got, 0).wait()
                assert bytes_of(got) == bytes_of(tensor)

    in_threads((2,), work)


def requires_grad(dtype: torch.dtype) -> bool:
    return dtype in (torch.float32, torch.complex64)


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


@both_ways
def test_letters_and_collectives_do_not_wait_for_one_another(
    in_threads: InThreads, layout: tuple[int, ...]
) -> None:
    """Nobody receives yet, while the all-reduces go on; then everything is there."""

    def work(session: Session) -> None:
        other = 1 - session.rank
        sent = [session.send(numbered(n, 1 << 18), other) for n in range(4)]
        for _ in range(20):
            tensor = torch.full((1 << 18,), float(session.rank))
            assert torch.equal(session.all_reduce(tensor).wait(), torch.full((1 << 18,), 0.5))
        for number in range(4):
            tensor = torch.empty(1 << 18, dtype=torch.int64)
            reduced = session.all_reduce(torch.full((1 << 18,), float(session.rank)))
            session.receive(tensor, other).wait()
            assert torch.equal(tensor, numbered(number, 1 << 18))
            assert torch.equal(reduced.wait(), torch.full((1 << 18,), 0.5))
        for each in sent:
            each.wait()

    in_threads(layout, work)


@both_ways
@pytest.mark.parametrize("size", [8, 1 << 20], ids=["small", "large"])
def test_another_size_fails_on_both_sides_and_the_session_goes_on(
    in_threads: InThreads, layout: tuple[int, ...], size: int
) -> None:
    text = f"rank 0 sent {8 * size} bytes with tag 3, and rank 1 expected 80"

    def work(session: Session) -> None:
        if session.rank == 0:
            with pytest.raises(gradwire.MismatchError, match=text):
                session.send(numbered(0, size), 1, 3).wait()
            session.send(numbered(1, size), 1, 3).wait()
            return
        with pytest.raises(gradwire.MismatchError, match=text):
            session.receive(torch.empty(10, dtype=torch.int64), None, 3).wait()
        tensor = torch.empty(size, dtype=torch.int64)
        assert session.receive(tensor, 0, 3).wait() == 0
        assert torch.equal(tensor, numbered(1, size))

    in_threads(layout, work)


@both_ways
def test_waiting_in_vain_names_the_peer_the_tag_and_the_seconds(
    in_threads: InThreads, layout: tuple[int, ...]
) -> None:
    def work(session: Session) -> None:
        other = 1 - session.rank
        begun = time.monotonic()
        sent = session.send(numbered(0, 1), other, tag=1, timeout=0.5)
        received = session.receive(torch.empty(1), other, tag=2, timeout=0.25)
        text = rf"waited 0\.25 s for a message with tag 2 \(4 bytes\) from rank {other}"
        with pytest.raises(gradwire.RoundTimeoutError, match=text):
            received.wait()
        text = rf"waited 0\.5 s for rank {other} to receive its message with tag 1 \(8 bytes\)"
        with pytest.raises(gradwire.RoundTimeoutError, match=text):
            sent.wait()
        assert 0.5 <= time.monotonic() - begun < 2
        session.all_reduce(torch.ones(1)).wait()

    in_threads(layout, work)


def test_the_sessions_timeout_is_what_counts_unless_another_is_given(
    in_threads: InThreads,
) -> None:
    def work(session: Session) -> None:
        with pytest.raises(gradwire.RoundTimeoutError, match="rank 0 waited 1 s"):
            session.receive(torch.empty(1), 1).wait()

    def quiet(session: Session) -> None:
        if session.rank == 0:
            work(session)
        session.all_reduce(torch.ones(1)).wait()

    in_threads((2,), quiet, timeout=1.0)


def test_what_cannot_be_sent_is_refused_at_once(in_threads: InThreads) -> None:
    def work(session: Session) -> None:
        tensor = torch.ones(4, 4)
        for call in (session.send, session.receive):
            with pytest.raises(ValueError, match="expected a contiguous tensor, got strides"):
                call(tensor.t(), 1 - session.rank)
            with pytest.raises(TypeError, match="takes CPU tensors, got one on meta"):
                call(tensor.to("meta"), 1 - session.rank)
            with pytest.raises(ValueError, match="lazy view"):
                call(torch.ones(2, dtype=torch.complex64).conj(), 1 - session.rank)
            for rank in (session.rank, -1, 2):
                with pytest.raises(ValueError, match=f"of 0 to 1, got {rank} on rank"):
                    call(tensor, rank)
            with pytest.raises(ValueError, match="expected a tag of 64 bits"):
                call(tensor, 1 - session.rank, 2**63)
            with pytest.raises(ValueError, match="expected a timeout above 0 s, got 0"):
                call(tensor, 1 - session.rank, timeout=0)

    in_threads((2,), work)


def test_what_is_chained_may_send_and_wait_itself(in_threads: InThreads) -> None:
    def work(session: Session) -> int:
        other, tensor = 1 - session.rank, torch.empty(1)
        answer = session.receive(tensor, other).then(
            lambda _: session.receive(tensor, other, 1).wait()
        )
        session.send(torch.ones(1), other)
        session.send(torch.ones(1) * 2, other, 1)
        source: int = answer.wait()
        assert tensor.item() == 2
        session.all_reduce(torch.ones(1)).wait()
        return source

    assert in_threads((2,), work) == [1, 0]
