"""When a silent node is suspected and when it is given up, by a clock of the test's own."""

from __future__ import annotations

import pytest

from gradwire_server.transport.vigil import Gone, Limits, Suspect, Vigil, Well

LIMITS = Limits.of(60.0, 20.0)
OFF = Limits.of(60.0, 0.0)


@pytest.mark.parametrize(
    ("timeout", "dead", "beat", "suspect"),
    [(1800, 10, 1, 3), (60, 10, 1, 3), (30, 5, 0.5, 2), (6, 1, 0.1, 2), (0.1, 1, 0.1, 2)],
)
def test_all_times_derive_from_the_jobs_timeout(
    timeout: float, dead: float, beat: float, suspect: float
) -> None:
    limits = Limits.of(timeout, 0)
    said = (limits.dead_seconds, limits.beat_seconds, limits.suspect_seconds)
    assert said == pytest.approx((dead, beat, suspect))


def look_until(vigil: Vigil, start: float, stop: float, down: tuple[int, ...] = ()) -> object:
    """Look every half second, while nothing new comes."""
    verdict: object = None
    for step in range(1, int((stop - start) * 2) + 1):
        verdict = vigil.look(start + step / 2, 7, down)
    return verdict


@pytest.mark.case("R02")
def test_silence_is_suspect_after_three_beats_and_a_loss_when_the_wait_is_over() -> None:
    vigil = Vigil(LIMITS, 0.0)
    assert vigil.look(0.0, 7, ()) == Well()
    assert look_until(vigil, 0, 3) == Well()
    assert look_until(vigil, 3, 3.5) == Suspect(3.5)
    assert look_until(vigil, 3.5, 20) == Suspect(20)
    assert vigil.silent_seconds(20.25, 7) == 20.25
    assert vigil.silent_seconds(20.25, 8) == 0
    assert look_until(vigil, 20, 20.5) == Gone(20.5, silent=True)


def test_without_resume_silence_is_no_matter_until_the_node_is_dead() -> None:
    vigil = Vigil(OFF, 0.0)
    vigil.look(0.0, 7, ())
    assert look_until(vigil, 0, 10) == Well()
    assert look_until(vigil, 10, 10.5) == Gone(10.5, silent=True)


def test_any_sign_of_life_begins_the_silence_anew() -> None:
    vigil = Vigil(LIMITS, 0.0)
    vigil.look(0.0, 6, ())
    for second in range(1, 100):
        assert vigil.look(float(second), 7 + second // 3, ()) == Well()


def test_a_lane_that_stays_down_loses_the_link_though_others_are_alive() -> None:
    vigil = Vigil(LIMITS, 0.0)
    verdicts = [vigil.look(step / 2, step, (2,)) for step in range(1, 43)]
    assert verdicts[5] == Well()
    assert verdicts[6] == Suspect(3.5)
    assert verdicts[-2:] == [Gone(20.5, silent=False), Gone(21.0, silent=False)]


def test_lanes_that_are_down_by_turns_are_not_down_for_long() -> None:
    vigil = Vigil(LIMITS, 0.0)
    for step in range(1, 200):
        assert vigil.look(step / 2, step, (step // 4 % 2,)) == Well()


@pytest.mark.case("R02")
def test_who_was_stopped_itself_does_not_call_others_silent() -> None:
    vigil = Vigil(LIMITS, 0.0)
    vigil.look(1.0, 7, ())
    assert vigil.look(100.0, 7, (1,)) == Well()
    assert vigil.look(100.5, 8, ()) == Well()
