"""Results that are not finite: who hears of them, and what becomes of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire import _nonfinite
from gradwire_ops.cluster import cluster

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gradwire import Session

InThreads: TypeAlias = Callable[..., list[Any]]

SEVERAL_CHUNKS = 5000
"""Elements that are several chunks of the scheduled clusters."""

INF, NAN = float("inf"), float("nan")


@pytest.fixture(autouse=True)
def no_warning_is_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_nonfinite, "WARN_SECONDS", 0.0)


def brought(
    session: Session, bad: Mapping[int, Mapping[int, float]], elements: int = SEVERAL_CHUNKS
) -> torch.Tensor:
    """Ones, and what is said of this rank's elements."""
    tensor = torch.ones(elements)
    for element, value in bad.get(session.rank, {}).items():
        tensor[element] = value
    return tensor


def outcome(future: torch.futures.Future[torch.Tensor]) -> str:
    """The error's text, or which elements are not finite."""
    try:
        result = future.wait()
    except gradwire.NonFiniteError as error:
        return str(error)
    return str(result.isfinite().logical_not().nonzero().flatten().tolist())


def raised(session: Session, bad: Mapping[int, Mapping[int, float]]) -> list[str]:
    texts = [outcome(session.all_reduce(brought(session, bad), op)) for op in ("mean", "sum")]
    after = session.all_reduce(torch.tensor([session.rank + 1.0]), "sum").wait().item()
    assert after == session.world_size * (session.world_size + 1) / 2
    return texts


CASES = [
    ({3: {7: NAN}}, "rank 3 of node {2} brought a NaN or an infinity at element 7 of"),
    ({3: {4321: INF}}, "rank 3 of node {2} brought a NaN or an infinity at element 4321 of"),
    ({1: {4999: INF}, 3: {3: -INF}}, "rank 1 of node {0} brought a NaN or an infinity at"),
    ({2: {2500: INF}, 3: {2500: -INF}}, "rank 2 of node {1} brought a NaN or an infinity at"),
    (
        {rank: {2500: 3e38} for rank in range(4)},
        "the sum overflowed, though every rank brought finite numbers, at element 2500 of a"
        " tensor [5000]; the result is not finite, on any rank",
    ),
]


@pytest.mark.case("M08")
@pytest.mark.parametrize(("bad", "words"), CASES)
def test_all_ranks_raise_and_name_who_brought_it(
    in_scheduled_threads: InThreads,
    monkeypatch: pytest.MonkeyPatch,
    bad: dict[int, dict[int, float]],
    words: str,
) -> None:
    monkeypatch.setenv("GRADWIRE_NONFINITE", "raise")
    first, *others = in_scheduled_threads((2, 1, 1), partial(raised, bad=bad))
    assert others == [first] * 3
    mean, total = first
    assert total.startswith(words.format(0, 1, 2))
    # A mean of such numbers does not overflow.
    assert mean == ("[]" if "overflowed" in words else total)


@pytest.mark.case("M08")
@pytest.mark.parametrize("layout", [(4,), (2, 2)])
@pytest.mark.parametrize("shared_memory", ["on", "off"])
def test_all_ranks_raise_alike_however_their_tensors_travel(
    threads_over: Callable[..., InThreads],
    monkeypatch: pytest.MonkeyPatch,
    layout: tuple[int, ...],
    shared_memory: str,
) -> None:
    monkeypatch.setenv("GRADWIRE_NONFINITE", "raise")
    monkeypatch.setenv("GRADWIRE_SHM", shared_memory)
    monkeypatch.setattr("gradwire._ways.LEAST_PART_BYTES", 4096)
    node = {(4,): 0, (2, 2): 1}[layout]
    settings = {"GRADWIRE_WORKERS": "2", "GRADWIRE_CHUNK_BYTES": "4096"}
    with cluster(2, settings) as nodes:
        for bad, words in CASES[:3]:
            work = partial(raised, bad=bad)
            first, *others = threads_over(nodes.addresses)(layout, work)
            assert others == [first] * 3
            expected = words.replace("{2}", str(node)).replace("{0}", "0")
            assert [text.startswith(expected) for text in first] == [True] * 2, first


@pytest.mark.case("M08")
def test_who_has_weight_0_is_not_looked_at(
    in_threads: InThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWIRE_NONFINITE", "raise")

    def work(session: Session) -> str:
        tensor = brought(session, {1: {7: NAN}})
        return outcome(session.all_reduce(tensor, weight=float(session.rank != 1)))

    assert in_threads((2,), work) == ["[]"] * 2
    assert in_threads((1, 1), work) == ["[]"] * 2


@pytest.mark.case("M08")
@pytest.mark.parametrize("layout", [(4,), (2, 2)])
def test_only_who_brought_it_warns_where_it_is_passed_on(
    in_threads: InThreads, caplog: pytest.LogCaptureFixture, layout: tuple[int, ...]
) -> None:
    bad = {1: {4: NAN}, 3: {7: INF, 9: INF}}
    large = {rank: {0: 3e38} for rank in range(4)}

    def work(session: Session) -> list[str]:
        return [
            outcome(session.all_reduce(brought(session, {}))),
            outcome(session.all_reduce(brought(session, bad))),
            outcome(session.all_reduce(brought(session, large), "sum")),
        ]

    with caplog.at_level(logging.WARNING, "gradwire._nonfinite"):
        assert in_threads(layout, work) == [["[]", "[4, 7, 9]", "[0]"]] * 4
    node = {(4,): 0, (2, 2): 1}[layout]
    assert sorted(caplog.messages) == [
        "rank 1 of node 0 brought a NaN or an infinity at element 4 of a tensor [5000]",
        f"rank 3 of node {node} brought a NaN or an infinity at element 7 of a tensor [5000]",
    ]


def test_warnings_are_held_back_and_counted(
    in_threads: InThreads, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_nonfinite, "WARN_SECONDS", 3600.0)

    def work(session: Session) -> None:
        for round_ in range(4):
            if round_ == 3:
                monkeypatch.setattr(_nonfinite, "WARN_SECONDS", 0.0)
            session.all_reduce(torch.tensor([NAN])).wait()

    with caplog.at_level(logging.WARNING, "gradwire._nonfinite"):
        in_threads((1,), work)
    assert len(caplog.messages) == 2
    assert caplog.messages[1].endswith("(2 such warnings before were held back)")


def test_a_part_that_is_scattered_is_judged_as_a_whole(
    in_threads: InThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWIRE_NONFINITE", "raise")

    def work(session: Session) -> str:
        tensor = brought(session, {1: {9: NAN}}, 10)
        return outcome(session.reduce_scatter(tensor, (0, 2)))

    words = "rank 1 of node 1 brought a NaN or an infinity at element 9 of a tensor [10"
    assert [text.startswith(words) for text in in_threads((1, 1), work)] == [True] * 2


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.bool, torch.float16])
def test_every_dtype_is_looked_at_as_far_as_it_may_hold_a_nan(
    in_threads: InThreads, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setenv("GRADWIRE_NONFINITE", "raise")

    def work(session: Session) -> list[str]:
        tensor = torch.ones(10, dtype=dtype)
        if dtype.is_complex or dtype.is_floating_point:
            tensor[6] = NAN
        texts = [outcome(session.all_reduce(tensor, "sum"))]
        gathered = torch.full((2,), NAN if dtype.is_floating_point else 1, dtype=dtype)
        session.all_gather(gathered, (session.rank, session.rank + 1)).wait()
        return texts

    finite = not (dtype.is_complex or dtype.is_floating_point)
    words = "[]" if finite else "rank 0 of node 0 brought a NaN or an infinity at element 6 of"
    assert [text[0].startswith(words) for text in in_threads((1, 1), work)] == [True] * 2


@pytest.mark.case("M31")
@pytest.mark.parametrize("layout", [(2,), (1, 1)])
def test_ranks_with_other_policies_are_told_so(
    daemons: Any,  # noqa: ANN401 - a fixture's
    layout: tuple[int, ...],
) -> None:
    store = dist.HashStore()
    seats = [daemons.addresses[0], daemons.addresses[len(layout) - 1]]
    texts: list[str] = []

    def sit(rank: int) -> None:
        with gradwire.connect(
            store=store,
            rank=rank,
            world_size=2,
            daemon=seats[rank],
            nonfinite=("pass", "skip")[rank],
        ) as session:
            with pytest.raises(gradwire.MismatchError) as caught:
                session.all_reduce(torch.ones(3)).wait()
            texts.append(str(caught.value))
            session.all_gather(torch.zeros(2), (rank, rank + 1)).wait()

    other = threading.Thread(target=sit, args=(1,))
    other.start()
    sit(0)
    other.join(20)
    assert len(texts) == 2
    for text in texts:
        assert "mean of 3 x float32 [3] with nonfinite skip" in text


def test_wrong_names_are_told_the_right_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(gradwire.ConnectError, match="nonfinite=stop: expected one of pass, ra"):
        gradwire.connect(nonfinite="stop")
    monkeypatch.setenv("GRADWIRE_NONFINITE", "ignore")
    with pytest.raises(gradwire.ConnectError, match="nonfinite=ignore: expected one of pass,"):
        gradwire.connect()
