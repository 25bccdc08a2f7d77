from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_proto.v1 import tensor_pb2 as pb
from gradwire_server.errors import LateError, MismatchError, ProtocolError
from gradwire_server.round import FAILURES_KEPT, Coding, Contribution, Key, Round, Rounds, Spec

SPEC = Spec(pb.OP_MEAN, pb.DTYPE_FLOAT32, 20, 7, "4x5")
KEY = Key(3, 0)


def contribution(spec: Spec = SPEC) -> Contribution:
    return Contribution(spec, 1.0)


def open_round() -> Round[str]:
    return Round(KEY, (1, 4), opened=0.0)


def test_a_round_misses_the_ranks_that_have_not_come() -> None:
    round_ = open_round()
    assert round_.missing == [1, 4]
    round_.contribute(4, contribution())
    assert round_.missing == [1]
    round_.contribute(1, contribution())
    assert round_.missing == []


def test_a_rank_that_comes_twice_is_refused() -> None:
    round_ = open_round()
    round_.contribute(4, contribution())
    with pytest.raises(ProtocolError, match="round 3: rank 4 contributed twice"):
        round_.contribute(4, contribution())


@pytest.mark.case("M31")
@pytest.mark.parametrize(
    ("other", "words"),
    [
        (replace(SPEC, dtype=pb.DTYPE_BFLOAT16), "mean of 20 x bfloat16 [4x5]"),
        (replace(SPEC, elements=21), "mean of 21 x float32 [4x5]"),
        (replace(SPEC, op=pb.OP_SUM), "sum of 20 x float32 [4x5]"),
        (replace(SPEC, shape_digest=8, shapes="5x4"), "mean of 20 x float32 [5x4]"),
    ],
    ids=["dtype", "elements", "op", "shapes"],
)
def test_a_rank_that_brings_something_else_is_named_with_both_sides(
    other: Spec, words: str
) -> None:
    round_ = open_round()
    round_.contribute(4, contribution())
    with pytest.raises(MismatchError) as caught:
        round_.contribute(1, contribution(other))
    expected = (
        f"round 3: rank 4 brought mean of 20 x float32 [4x5], but rank 1 brought {words}."
    )
    assert str(caught.value).startswith(expected)
    assert round_.missing == [1], "what does not fit is not taken"


@pytest.mark.case("P10")
@pytest.mark.parametrize(
    ("coding", "words"),
    [
        (Coding(pb.WIRE_UNSPECIFIED), "wire 0 is not known"),
        (Coding(99), "wire 99 is not known"),  # type: ignore[arg-type]  # a peer may send it
        (Coding(pb.WIRE_TOPK), "a ratio above 0, at most 1, got 0"),
        (Coding(pb.WIRE_TOPK, 1.5), "a ratio above 0, at most 1, got 1.5"),
        (Coding(pb.WIRE_TOPK, float("nan")), "got nan"),
        (Coding(pb.WIRE_INT8, feedback=True), "feedback needs an identity"),
    ],
)
def test_a_wire_that_makes_no_sense_is_refused_by_name(coding: Coding, words: str) -> None:
    with pytest.raises(ProtocolError, match=f"rank 4 brought .*: .*{words}"):
        contribution(replace(SPEC, coding=coding)).extent("rank 4", 0, 4096)


@pytest.mark.parametrize(
    ("op", "dtype"), [(pb.OP_MEAN, pb.DTYPE_INT8), (pb.OP_MAX, pb.DTYPE_FLOAT32)]
)
def test_a_lossy_wire_carries_no_other_ops_and_types(op: pb.Op, dtype: pb.Dtype) -> None:
    spec = replace(SPEC, op=op, dtype=dtype, coding=Coding(pb.WIRE_INT8))
    with pytest.raises(ProtocolError, match="lossy wires carry sums and means of 16- and 32-"):
        contribution(spec).extent("rank 4", 0, 4096)


def test_a_spec_comes_back_from_its_message() -> None:
    coding = Coding(pb.WIRE_TOPK, 0.25, stochastic=True, seed=7, identity=2**63, feedback=True)
    for spec in (SPEC, replace(SPEC, coding=coding)):
        again = Spec.read(pb.Spec.FromString(spec.write().SerializeToString()))
        assert again == spec


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        (pb.OP_BAND, pb.DTYPE_FLOAT32),
        (pb.OP_MEAN, pb.DTYPE_BOOL),
        (pb.OP_GATHER, pb.DTYPE_INT8),
    ],
)
def test_an_op_without_a_meaning_for_its_dtype_is_refused(op: pb.Op, dtype: pb.Dtype) -> None:
    with pytest.raises(ProtocolError, match="rank 1 brought what has no meaning"):
        contribution(Spec(op, dtype, 4, 0)).extent("rank 1", 0, 4096)


@pytest.mark.case("M31")
def test_what_another_node_brings_is_compared_too_whoever_comes_first() -> None:
    other = replace(SPEC, elements=9)
    first, second = open_round(), open_round()
    first.contribute(4, contribution())
    with pytest.raises(
        MismatchError, match=r"rank 4 brought mean of 20 .*, but node 1 brought"
    ):
        first.arrive("node 1", other, "part")
    second.arrive("node 1", other, "part")
    with pytest.raises(MismatchError, match=r"node 1 brought mean of 9 .*, but rank 4 brought"):
        second.contribute(4, contribution())
    assert (list(first.arrived), list(second.arrived)) == ([], ["part"])


def test_shapes_in_words_are_for_the_text_only() -> None:
    round_ = open_round()
    round_.contribute(4, contribution())
    round_.contribute(1, contribution(replace(SPEC, shapes="cut short ...")))
    assert round_.spec == SPEC


def rounds(*ranks: int) -> Rounds[str]:
    return Rounds(ranks)


@pytest.mark.parametrize(
    "key",
    [Key(0, 0), Key(0, 2), Key(1, 1), Key(2, 0)],
    ids=["again", "a chunk skipped", "not from the start", "a collective skipped"],
)
def test_a_rank_brings_its_chunks_in_order(key: Key) -> None:
    book = rounds(5)
    book.advance(5, Key(0, 0), final=True)
    with pytest.raises(
        ProtocolError, match=f"rank 5 expected .*, got chunk {key.chunk} of round"
    ):
        book.advance(5, key, final=True)
    book.advance(5, Key(1, 0), final=True)


def test_a_rank_has_taken_part_in_a_collective_once_it_brought_its_last_chunk() -> None:
    book = rounds(5)
    assert book.sequences(5) == 0
    book.advance(5, Key(0, 0), final=False)
    assert book.sequences(5) == 0
    book.advance(5, Key(0, 1), final=True)
    assert book.sequences(5) == 1
    book.advance(5, Key(1, 0), final=False)
    assert book.sequences(5) == 1


def test_a_round_is_the_same_for_all_who_ask_until_it_has_its_result() -> None:
    book = rounds(0, 1)
    first = book.get(KEY, 1.0)
    assert first is not None
    assert book.get(KEY, 2.0) is first
    assert book.open == [first]
    book.close(KEY)
    assert book.open == []


def test_a_round_that_all_ranks_have_passed_is_over() -> None:
    book = rounds(0, 1)
    for rank in (0, 1):
        for sequence in (0, 1):
            book.advance(rank, Key(sequence, 0), final=True)
    assert book.get(Key(0, 0), 0.0) is None
    assert book.get(Key(1, 0), 0.0) is not None


def test_a_round_that_has_its_result_is_over_though_no_rank_has_gone_on() -> None:
    rounds: Rounds[str] = Rounds((0,))
    for chunk in (0, 1):
        rounds.advance(0, Key(0, chunk), final=bool(chunk))
        assert rounds.get(Key(0, chunk), 0.0) is not None
    for chunk in (1, 0):
        rounds.close(Key(0, chunk))
    assert [rounds.get(Key(0, chunk), 0.0) for chunk in (0, 1)] == [None, None]
    assert rounds.get(Key(1, 0), 0.0) is not None


def test_a_round_that_one_rank_has_yet_to_come_to_is_not_over() -> None:
    book = rounds(0, 1)
    for sequence in (0, 1, 2):
        book.advance(0, Key(sequence, 0), final=True)
    assert book.get(Key(0, 0), 0.0) is not None


def test_a_failed_collective_drops_its_rounds_and_stays_failed() -> None:
    book = rounds(0, 1)
    kept = book.get(Key(4, 0), 0.0)
    dropped = [book.get(Key(3, chunk), 0.0) for chunk in (0, 1)]
    error = LateError("late")
    assert book.fail(3, error) == dropped
    assert book.open == [kept]
    assert book.failure(3) is error
    assert book.get(Key(3, 2), 0.0) is None
    assert book.fail(3, LateError("again")) is None


def test_only_ranks_that_have_begun_a_collective_wait_for_it() -> None:
    book = rounds(0, 1, 2)
    book.advance(0, Key(0, 0), final=True)
    book.advance(0, Key(1, 0), final=False)
    book.advance(1, Key(0, 0), final=True)
    assert (book.begun(0), book.begun(1)) == ([0, 1], [0])


def test_failures_are_remembered_for_frames_that_come_late_but_not_for_ever() -> None:
    book = rounds(0)
    for sequence in range(FAILURES_KEPT + 1):
        book.advance(0, Key(sequence, 0), final=True)
        book.fail(sequence, LateError(str(sequence)))
    assert book.failure(0) is None
    assert str(book.failure(1)) == "1"


def test_a_rank_that_lags_behind_finds_every_failure() -> None:
    book = rounds(0, 1)
    for sequence in range(2 * FAILURES_KEPT):
        book.advance(0, Key(sequence, 0), final=True)
        book.fail(sequence, LateError(str(sequence)))
    assert str(book.failure(0)) == "0"


@given(sequences=st.lists(st.integers(0, 6), max_size=30))
def test_a_collective_fails_once_however_often_it_is_said(sequences: list[int]) -> None:
    book = rounds(0)
    first = [book.fail(sequence, LateError("")) is not None for sequence in sequences]
    assert sum(first) == len(set(sequences))
