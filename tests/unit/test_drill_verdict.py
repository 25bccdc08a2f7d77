from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gradwire_ops.drill_verdict import (
    BADLY,
    CLEANLY,
    HUNG,
    SURVIVED,
    WRONG,
    Finding,
    Record,
    Reference,
    Strike,
    added_seconds,
    bits_equal,
    detect_seconds,
    judge,
    raised_seconds,
    recover_seconds,
    reference,
    steps_lost,
)

UNDISTURBED = Reference(steps=(11, 12, 13, 14), digest="d", seconds=3.0, step_seconds=1.0)
KILLED = Strike(2.5, 2.5, ("rank 1 (pid 71 ",), "SIGKILL to rank 1", victim=1)
STOPPED = Strike(2.5, 4.5, ("node 1 ", "unix:/one"), "SIGSTOP to node 1")
MOURNING = (2.75, "LostError", "rank 1 (pid 71 on here) is lost: its process ended")


def finished(
    rank: int, digests: tuple[int, ...] = (11, 12, 13, 14), gap: float = 0.0
) -> Record:
    """Steps at 1, 2, ...; those after the second so much later."""
    times = [step + 1 + gap * (step > 1) for step in range(len(digests))]
    steps = list(zip(times, digests, strict=True))
    return Record(rank, 70 + rank, steps, digest="d", exit_code=0)


def failed(rank: int, error: tuple[float, str, str] | None, steps: int = 2) -> Record:
    done = [(step + 1.0, 11 + step) for step in range(steps)]
    return Record(rank, 70 + rank, done, error=error, exit_code=0 if error else -9)


def test_the_reference_is_what_all_ranks_agree_on() -> None:
    found = reference([finished(0), finished(1, gap=1.0)])
    assert found == Reference((11, 12, 13, 14), "d", 4.0, 1.0)


@pytest.mark.parametrize(
    "other",
    [finished(1, (11, 12, 13, 15)), replace(finished(1), digest="e"), failed(1, MOURNING)],
)
def test_ranks_that_differ_or_fail_are_no_reference(other: Record) -> None:
    with pytest.raises(ValueError, match="undisturbed"):
        reference([finished(0), other])


def test_who_ends_with_the_same_bits_has_survived() -> None:
    records = [finished(0, gap=2.0), finished(1, gap=2.0)]
    assert judge(records, STOPPED, UNDISTURBED, next_job_right=True) == (SURVIVED, "")
    assert bits_equal(records, UNDISTURBED)
    assert steps_lost(records, STOPPED, UNDISTURBED) == 0
    assert detect_seconds(records, STOPPED, []) is None
    assert detect_seconds(records, STOPPED, [1.0, 3.0, 3.5]) == 0.5
    assert recover_seconds(records, STOPPED) == 0.5
    assert added_seconds(records, UNDISTURBED) == 2.0
    assert raised_seconds(records, STOPPED) is None


def test_a_log_says_milliseconds_rounded_down() -> None:
    records = [finished(0)]
    assert detect_seconds(records, STOPPED, [STOPPED.began - 0.0005]) == 0
    assert detect_seconds(records, STOPPED, [STOPPED.began - 0.1]) is None


def test_recovery_is_a_step_that_the_last_rank_has_done() -> None:
    assert recover_seconds([finished(0, gap=2.0), finished(1, gap=3.0)], STOPPED) == 1.5


def test_a_wrong_bit_in_any_step_of_any_rank_is_found() -> None:
    records = [finished(0), finished(1, (11, 12, 99, 99))]
    verdict, text = judge(records, STOPPED, UNDISTURBED, next_job_right=True)
    assert (verdict, text) == (WRONG, "rank 1 has other bits from step 2 on")
    assert not bits_equal(records, UNDISTURBED)


def test_wrong_parameters_are_found_where_all_results_were_right() -> None:
    records = [finished(0), replace(finished(1), digest="e")]
    assert judge(records, STOPPED, UNDISTURBED, next_job_right=True)[0] == WRONG


def test_wrong_bits_of_a_job_that_failed_are_wrong_bits() -> None:
    records = [failed(0, MOURNING), Record(1, 71, [(1.0, 12)], exit_code=-9)]
    assert judge(records, KILLED, UNDISTURBED, next_job_right=True)[0] == WRONG


def test_survivors_that_name_the_dead_have_failed_cleanly() -> None:
    records = [failed(0, MOURNING), failed(1, None)]
    verdict, text = judge(records, KILLED, UNDISTURBED, next_job_right=True)
    assert verdict == CLEANLY
    assert "rank 1 (pid 71 on here)" in text
    assert steps_lost(records, KILLED, UNDISTURBED) == 1
    assert detect_seconds(records, KILLED, [2.6]) == pytest.approx(0.1)
    assert raised_seconds(records, KILLED) == 0.25
    assert recover_seconds(records, KILLED) is None
    assert added_seconds(records, UNDISTURBED) is None


def test_one_that_does_not_end_hangs_whatever_the_others_do() -> None:
    running = replace(failed(0, None), exit_code=None)
    verdict, text = judge([running, failed(1, None)], KILLED, UNDISTURBED, next_job_right=True)
    assert (verdict, text) == (HUNG, "ranks [0] did not end")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ((2.75, "LostError", "somebody is lost"), "named none of"),
        ((2.75, "KeyError", "rank 1 (pid 71 on here)"), "raised KeyError"),
        (None, "exit code -9"),
    ],
)
def test_survivors_that_name_nobody_or_crash_have_failed(
    error: tuple[float, str, str] | None, words: str
) -> None:
    records = [failed(0, error), failed(1, None)]
    verdict, text = judge(records, KILLED, UNDISTURBED, next_job_right=True)
    assert verdict == BADLY
    assert words in text


def test_a_next_job_that_fails_is_no_clean_failure() -> None:
    records = [failed(0, MOURNING), failed(1, None)]
    assert judge(records, KILLED, UNDISTURBED, next_job_right=False)[0] == BADLY


def test_who_crashes_after_the_last_step_has_not_survived() -> None:
    records = [finished(0), replace(finished(1), exit_code=-11)]
    assert judge(records, STOPPED, UNDISTURBED, next_job_right=True)[0] != SURVIVED


def test_a_finding_has_the_promised_names_in_json() -> None:
    found = Finding("kill-rank", CLEANLY, 0.1, None, 1, True, 7, 0)
    written = json.loads(json.dumps(found.to_dict()))
    promised = {
        "fault": "kill-rank",
        "verdict": "failed cleanly",
        "detect_seconds": 0.1,
        "recover_seconds": None,
        "steps_lost": 1,
        "bits_equal": True,
        "seed": 7,
    }
    assert promised.items() <= written.items()


def test_good_is_what_was_expected_with_nothing_left_behind() -> None:
    cleanly = Finding("kill-rank", CLEANLY, 0.1, None, 1, True, 0, 0)
    assert cleanly.good
    assert not replace(cleanly, leftovers=("an arena",)).good
    assert not replace(cleanly, fault="kill-daemon").good
    assert replace(cleanly, fault="kill-daemon", verdict=SURVIVED).good
    assert not replace(cleanly, verdict=SURVIVED).good
