"""How a session's tensors are spread over its ways; pipelines are stand-ins."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire._errors import ConnectError, LostError, MismatchError
from gradwire._order import gathering, reducing
from gradwire._result import Result
from gradwire._ways import LEAST_PART_BYTES, Way, Ways, cut

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradwire._carrier import Outcome
    from gradwire._checkpoint import Residual
    from gradwire._order import Order

LARGE = LEAST_PART_BYTES // 4 * 4 + 5


class Line:
    """In place of a pipeline: keeps what it is given, and ends when it is told to."""

    def __init__(self) -> None:
        self.brought: list[tuple[Order, Outcome]] = []
        self.over: Exception | None = None
        self._at_end: list[Callable[[Exception, bool], None]] = []

    def submit(self, order: Order) -> Result[torch.Tensor]:
        result: Result[torch.Tensor] = Result(lambda *_: None)
        self.bring(order, result)
        return result

    def bring(self, order: Order, future: Outcome) -> None:
        self.brought.append((order, future))

    def attend(self, at_end: Callable[[Exception, bool], None]) -> None:
        self._at_end.append(at_end)

    def end(self, error: Exception, leave: Callable[[], None] | None = None) -> None:
        if self.over is None:
            self.over = error
            for call in self._at_end:
                call(error, leave is not None)

    def call_mover(self) -> None:
        pass

    def work_until(self, future: Outcome, _deadline: float) -> None:
        assert future.done()

    def settle(self, error: Exception | None = None) -> None:
        """The oldest of what it was given."""
        order, future = self.brought.pop(0)
        future.settle(error or (lambda: order.flat.mul_(2)))


class NoMail:
    def attend(self, _: object) -> None:
        pass

    def end(self, _: object, *, flush: bool) -> None:
        pass


class NoVault:
    def read(self, _: object) -> list[Residual]:
        return []

    def write(self, _: list[Residual]) -> int:
        return 0


def ways(workers: int) -> tuple[Ways, list[Line]]:
    """Lines of the ordinary ways first, then, once they are there, of the urgent ones."""
    lines: list[Line] = []

    def join(_worker: int, _urgent: bool) -> Way:
        line: Any = Line()
        lines.append(line)
        mail: Any = NoMail()
        return Way(line, mail, lambda: None, "shared_memory", NoVault())

    return Ways(workers, join), lines


def mean(elements: int) -> Order:
    tensor = torch.ones(elements)
    return reducing(tensor, [tuple(tensor.shape)], "mean", 1.0)


@given(st.integers(0, 1 << 26), st.sampled_from([1, 2, 4, 8]), st.integers(1, 8))
def test_parts_are_the_whole_in_order_and_none_is_small(
    elements: int, itemsize: int, count: int
) -> None:
    parts = cut(elements, itemsize, count)
    assert parts[0][0] == 0
    assert parts[-1][1] == elements
    assert all(stop == start for (_, stop), (start, _) in pairwise(parts))
    assert 1 <= len(parts) <= count
    if len(parts) > 1:
        assert all((stop - start) * itemsize >= LEAST_PART_BYTES / 2 for start, stop in parts)


def test_small_tensors_take_turns() -> None:
    both, lines = ways(2)
    for _ in range(4):
        both.submit(mean(3), urgent=False)
    assert [len(line.brought) for line in lines] == [2, 2]


def test_a_large_tensor_goes_all_ways_and_has_one_result() -> None:
    both, lines = ways(4)
    order = mean(LARGE)
    result = both.submit(order, urgent=False)
    assert sum(line.brought[0][0].flat.numel() for line in lines) == LARGE
    for line in lines:
        assert not result.done()
        line.settle()
    assert torch.equal(result.wait(), torch.full((LARGE,), 2.0))
    assert result.wait() is order.tensor


def test_a_part_knows_what_of_it_the_rank_brings_and_takes() -> None:
    both, lines = ways(2)
    size = 4 * LEAST_PART_BYTES
    both.submit(gathering(torch.zeros(size, dtype=torch.uint8), (100, 3 << 20)), urgent=False)
    (first, _), (second, _) = lines[0].brought[0], lines[1].brought[0]
    half = size // 2
    assert (first.brings, second.brings) == ((100, half), (0, (3 << 20) - half))
    assert first.takes == ((0, 100), (half, half))
    assert second.takes == ((0, 0), ((3 << 20) - half, half))


def test_an_error_of_one_part_waits_for_the_others_which_may_still_be_written() -> None:
    both, lines = ways(2)
    result = both.submit(mean(LARGE), urgent=False)
    lines[1].settle(MismatchError("sizes differ"))
    assert not result.done()
    lines[0].settle()
    with pytest.raises(MismatchError, match="sizes differ"):
        result.wait()


def test_what_is_urgent_takes_seats_of_its_own_when_it_first_comes() -> None:
    both, lines = ways(2)
    both.submit(mean(3), urgent=False)
    assert len(lines) == 2
    both.submit(mean(3), urgent=True)
    both.submit(mean(3), urgent=True)
    assert [len(line.brought) for line in lines] == [1, 0, 1, 1]


def test_where_one_way_is_lost_all_are() -> None:
    both, lines = ways(2)
    both.submit(mean(3), urgent=True)
    lines[3].end(LostError("the daemon is gone"))
    assert [str(line.over) for line in lines] == ["the daemon is gone"] * 4
    assert both.over is not None


def test_a_session_that_ends_ends_all_its_ways() -> None:
    both, lines = ways(2)
    both.end(LostError("closed"))
    assert [str(line.over) for line in lines] == ["closed"] * 2
    with pytest.raises(LostError, match="closed"):
        both.submit(mean(3), urgent=True)


def test_where_one_seat_is_refused_none_is_kept() -> None:
    lines: list[Line] = []

    def join(worker: int, _urgent: bool) -> Way:
        if worker == 1:
            raise ConnectError("no seat")
        line: Any = Line()
        lines.append(line)
        mail: Any = NoMail()
        return Way(line, mail, lambda: None, "stream", NoVault())

    with pytest.raises(ConnectError, match="no seat"):
        Ways(2, join)
    assert lines[0].over is not None


def test_seats_that_were_taken_while_the_session_ended_are_given_up() -> None:
    lines: list[Line] = []

    def join(_worker: int, urgent: bool) -> Way:
        if urgent:
            both.end(LostError("closed meanwhile"))
        line: Any = Line()
        lines.append(line)
        mail: Any = NoMail()
        return Way(line, mail, lambda: None, "stream", NoVault())

    both = Ways(1, join)
    with pytest.raises(LostError, match="closed meanwhile"):
        both.submit(mean(3), urgent=True)
    assert all(line.over is not None for line in lines)
    assert len(lines) == 2
