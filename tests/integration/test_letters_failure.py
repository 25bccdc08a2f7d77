"""Somebody leaves, does not receive, or breaks the rules: who waits for letters hears of it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import psutil
import pytest
import torch

import gradwire
from gradwire._channel import Daemon
from gradwire._inbox import Inbox
from gradwire_ops import query
from gradwire_ops.cluster import Cluster, cluster
from gradwire_proto import PROTOCOL, wire
from gradwire_proto.letters import PAGE_BYTES
from gradwire_proto.v1 import aggregator_pb2 as pb

if TYPE_CHECKING:
    from gradwire import Session
    from gradwire._letters import Effect

InThreads: TypeAlias = Callable[..., list[Any]]

NOTICE_SECONDS = 2.0
SMALL, LARGE = 8, 1 << 20
"""Elements of 8 bytes."""

every_layout = pytest.mark.parametrize("layout", [(3,), (2, 1), (1, 2)])
every_size = pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])


@pytest.fixture
def mortal() -> Iterator[Cluster]:
    """Daemons that a test may kill."""
    with cluster(2) as running:
        yield running


def numbers(size: int) -> torch.Tensor:
    return torch.arange(size, dtype=torch.int64)


def lost(future: torch.futures.Future[Any], text: str) -> None:
    begun = time.monotonic()
    with pytest.raises(gradwire.LostError, match=text):
        future.wait()
    assert time.monotonic() - begun < NOTICE_SECONDS


@every_layout
@every_size
def test_letters_with_a_rank_that_leaves_fail_and_others_go_on(
    in_threads: InThreads, layout: tuple[int, ...], size: int
) -> None:
    ready = threading.Barrier(3)

    def work(session: Session) -> None:
        if session.rank == 1:
            session.receive(torch.empty(1), 0, 9).wait()
            ready.wait(10)
            return
        if session.rank == 0:
            session.send(torch.ones(1), 1, 9).wait()
        other = 2 - session.rank
        sent = session.send(numbers(size), 1)
        received = session.receive(numbers(size), 1)
        anyone = session.receive(torch.empty(size, dtype=torch.int64), None, 4)
        ready.wait(10)
        lost(sent, rf"rank 1 has left the job; the message with tag 0 from rank {session.rank}")
        lost(received, f"rank 1 has left the job; rank {session.rank} waited for a message")
        lost(session.send(numbers(size), 1), "rank 1 has left")
        session.send(numbers(size), other, 4).wait()
        assert anyone.wait() == other

    in_threads(layout, work)


@pytest.mark.parametrize("layout", [(2,), (1, 1)], ids=["one node", "two nodes"])
@every_size
def test_what_was_received_just_before_leaving_counts_as_sent(
    in_threads: InThreads, layout: tuple[int, ...], size: int
) -> None:
    def work(session: Session) -> None:
        if session.rank == 0:
            session.send(numbers(size), 1).wait()
        else:
            session.receive(numbers(size), 0).wait()

    for _ in range(10):
        in_threads(layout, work)


def test_who_leaves_before_he_first_receives_is_heard_of_by_who_comes_later(
    in_threads: InThreads,
) -> None:
    def work(session: Session) -> None:
        if session.rank == 0:
            time.sleep(0.5)
            lost(session.receive(torch.empty(1)), "every other rank has left the job")

    in_threads((1, 1), work)


def test_closing_fails_what_is_open_here(in_threads: InThreads) -> None:
    closed = threading.Event()

    def work(session: Session) -> None:
        if session.rank == 1:
            assert closed.wait(10)
            return
        sent, received = session.send(numbers(SMALL), 1, 5), session.receive(torch.empty(1))
        session.close()
        closed.set()
        lost(sent, "closed; the message with tag 5 to rank 1 .64 bytes. was not complete")
        lost(received, "closed; the message with tag 0 from any rank .4 bytes.")
        lost(session.send(numbers(SMALL), 1), "this session was closed")

    in_threads((2,), work)


def test_a_daemon_that_dies_ends_all_letters(
    mortal: Cluster,
    threads_over: Callable[[Sequence[str]], InThreads],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRADWIRE_RESUME", "0")
    ready = threading.Barrier(2)

    def work(session: Session) -> None:
        other = 1 - session.rank
        futures: list[Any] = [
            session.send(numbers(LARGE), other, 1),
            session.receive(numbers(LARGE), other, 2),
        ]
        if ready.wait(10) == 0:
            psutil.Process(mortal.daemons[1].pid).kill()
        for future in futures:
            lost(future, "gone|lost")

    threads_over(mortal.addresses)((1, 1), work)


def test_a_receiver_that_never_comes_takes_no_memory_of_the_daemons(
    mortal: Cluster, threads_over: Callable[[Sequence[str]], InThreads]
) -> None:
    processes = [psutil.Process(daemon.pid) for daemon in mortal.daemons]

    def memory() -> int:
        return max(each.memory_info().rss - each.memory_info().shared for each in processes)

    def work(session: Session) -> tuple[int, int]:
        session.all_reduce(torch.ones(1)).wait()
        before, futures = memory(), []
        if session.rank == 0:
            fat, middle = numbers(LARGE), numbers(8192)
            for _ in range(300):
                futures += [session.send(fat, 1), session.send(middle, 1)]
                # Given up, and offered again: nothing of that may pile up either.
                session.send(middle, 1, timeout=0.01)
        for _ in range(100):
            session.all_reduce(torch.ones(1 << 16)).wait()
        after = memory()
        assert not any(future.done() for future in futures)
        return before, after

    before, after = threads_over(mortal.addresses)((1, 1), work)[0]
    assert after - before < 12 << 20


def test_a_receiver_that_is_slow_holds_up_no_collective(
    in_threads: InThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages, take, page_seconds = 8, Inbox.page, 0.5

    def slowly(inbox: Inbox, note: pb.Note, payload: memoryview) -> list[Effect]:
        time.sleep(page_seconds)
        return take(inbox, note, payload)

    monkeypatch.setattr(Inbox, "page", slowly)

    def work(session: Session) -> None:
        tensor = numbers(pages * PAGE_BYTES // 8)
        letter: Any = session.send(tensor, 1) if session.rank == 0 else session.receive(tensor)
        begun = time.monotonic()
        for _ in range(20):
            session.all_reduce(torch.ones(1 << 18)).wait()
        assert time.monotonic() - begun < pages * page_seconds / 2
        assert not letter.done()
        letter.wait()

    in_threads((1, 1), work)


@pytest.mark.parametrize(
    ("note", "payload", "text"),
    [
        (pb.Note(), b"", "expected a note from rank 0 to another"),
        (pb.Note(target=1), b"", "expected a note of a letter, got one of kind None"),
        (pb.Note(target=1, number=2, offer=pb.Offer()), b"", "expected letter 1, got 2"),
        (pb.Note(target=1, number=1, page=pb.Page()), b"x", "a letter of 1 to 0, got 1"),
        (pb.Note(target=1, departure=pb.Departure()), b"", "got one of kind departure"),
    ],
    ids=["empty", "no kind", "number", "page", "departure"],
)
def test_who_breaks_the_rules_loses_his_seat(
    daemons: Cluster, note: pb.Note, payload: bytes, text: str
) -> None:
    address = daemons.addresses[0]
    line = Daemon(address).post(seat(address))
    line.send(note, memoryview(payload))
    with pytest.raises(gradwire.LostError, match=text):
        line.receive()
    line.close()
    assert query.status(address).version


def test_a_seat_has_one_stream_of_letters(daemons: Cluster) -> None:
    address = daemons.addresses[0]
    token, daemon = seat(address), Daemon(address)
    first = daemon.post(token)
    note = pb.Note(target=1, number=1, offer=pb.Offer(size=3))
    first.send(note, memoryview(b"abc"))
    second = daemon.post(token)
    with pytest.raises(gradwire.LostError, match="already has a stream of letters"):
        second.receive()
    first.finish()
    with pytest.raises(gradwire.LostError, match="its stream ended"):
        first.receive()
    daemon.leave(token)
    daemon.close()


def seat(address: str) -> str:
    """Rank 0's, in a job of two at one node, where nobody takes the other."""
    described = query.describe(address)
    request = pb.JoinRequest(
        protocol=PROTOCOL, generation=os.urandom(8).hex(), world_size=2, shared_memory=False
    )
    request.nodes.add(id=described.node_id, address=described.address, ranks=[0, 1])
    return Daemon(address).join(request, 10.0).seat


def test_the_request_is_written_like_the_response() -> None:
    note = pb.Note(source=1, target=2, number=3, offer=pb.Offer(tag=-4, size=5))
    request = wire.join(pb.PostRequest(note=note), memoryview(b"abcde"))
    assert request == wire.join(pb.PostResponse(note=note), memoryview(b"abcde"))
