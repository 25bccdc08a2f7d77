"""Drills, one repetition after the other: each a job of its own."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire_ops import drill_verdict
from gradwire_ops.children import ChildError
from gradwire_ops.drill_faults import Scene, strike
from gradwire_ops.drill_job import Ranks
from gradwire_ops.drill_nodes import Nodes, nodes
from gradwire_ops.drill_plan import moment
from gradwire_ops.drill_verdict import CLEANLY, SURVIVED, Finding, Reference, Strike

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Self

    from gradwire_ops.drill_plan import DrillPlan, Moment

NEXT_STEPS = 3
START_SECONDS = 60.0
"""For ranks to begin, and a job that nothing befalls."""
GRACE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class _Outcome:
    fault: str
    ranks: Ranks
    strike: Strike
    words: list[float]


class Field:
    """Daemons on which faults are drilled. They live on where a job leaves them well."""

    def __init__(self, plan: DrillPlan, *, relayed: bool) -> None:
        self._plan = plan
        self._relayed = relayed
        self.left: list[str] = []
        """What daemons that have ended left behind."""
        self._stack = ExitStack()
        self._nodes: Nodes | None = None
        self._undisturbed: Reference | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def undisturbed(self) -> Reference:
        """The same job, without the fault. Raises ChildError where it fails.

        The second of two, which must agree: fresh daemons take longer for their first job.
        """
        if self._undisturbed is None:
            first, second = self._run_undisturbed(), self._run_undisturbed()
            if (first.steps, first.digest) != (second.steps, second.digest):
                raise ChildError("two undisturbed runs ended with different bits")
            self._undisturbed = second
        return self._undisturbed

    def _run_undisturbed(self) -> Reference:
        with Ranks(self._plan, self._ready().addresses, self._plan.steps) as ranks:
            ranks.await_end(START_SECONDS + 2 * self._plan.timeout)
            try:
                return drill_verdict.reference(ranks.records)
            except ValueError as error:
                raise ChildError(f"{error}\n{ranks.last_words()}") from error

    def findings(self, fault: str) -> Generator[Finding, None, None]:
        """One for each repetition."""
        for repetition in range(self._plan.repeat):
            yield self._repeat(fault, repetition)

    def _ready(self) -> Nodes:
        if self._nodes is None:
            self._nodes = self._stack.enter_context(
                nodes(self._plan, self.left, relayed=self._relayed)
            )
        return self._nodes

    def _renew(self) -> None:
        """After a failure that may have left anything behind."""
        self._nodes = None
        self._stack.close()

    def _repeat(self, fault: str, repetition: int) -> Finding:
        reference = self.undisturbed()
        when = moment(self._plan, fault, repetition)
        daemons = self._ready()
        with Ranks(self._plan, daemons.addresses, self._plan.steps) as ranks:
            outcome = self._strike(fault, ranks, when, reference)
        finding = self._judge(outcome, repetition, reference)
        if finding.verdict not in (SURVIVED, CLEANLY) or finding.leftovers:
            self._renew()
        return finding

    def _strike(self, fault: str, ranks: Ranks, when: Moment, reference: Reference) -> _Outcome:
        daemons = self._ready()
        if not ranks.await_step(when.step, START_SECONDS):
            raise ChildError(f"the ranks did not get to step {when.step}\n{ranks.last_words()}")
        time.sleep(when.part * reference.step_seconds)
        struck = strike(fault, Scene(self._plan, when, daemons, ranks))
        ranks.await_end(self._patience(reference))
        return _Outcome(fault, ranks, struck, daemons.words())

    def _patience(self, reference: Reference) -> float:
        """Who has not ended by then hangs."""
        resume = self._plan.resume or 0.0
        return GRACE_SECONDS + 2 * self._plan.timeout + resume + 5 * reference.seconds

    def _judge(self, outcome: _Outcome, repetition: int, reference: Reference) -> Finding:
        records, struck = outcome.ranks.records, outcome.strike
        verdict, error = drill_verdict.judge(records, struck, reference, next_job_right=True)
        if verdict == CLEANLY and not self._runs_next(reference):
            verdict, error = drill_verdict.judge(records, struck, reference, False)
        last = max((one.steps[-1][0] for one in records if one.steps), default=struck.ended)
        words = [at for at in outcome.words if at <= max(last, struck.ended)]
        if verdict != SURVIVED:
            words = outcome.words
        left = tuple(self._ready().leftovers()) if verdict in (SURVIVED, CLEANLY) else ()
        return Finding(
            fault=outcome.fault,
            verdict=verdict,
            detect_seconds=drill_verdict.detect_seconds(records, struck, words),
            # Of a job that fails some steps may still be done before it hears of the fault.
            recover_seconds=drill_verdict.recover_seconds(records, struck)
            if verdict == SURVIVED
            else None,
            steps_lost=drill_verdict.steps_lost(records, struck, reference),
            bits_equal=drill_verdict.bits_equal(records, reference),
            seed=self._plan.seed,
            repetition=repetition,
            what=struck.text,
            error=error,
            added_seconds=drill_verdict.added_seconds(records, reference),
            raised_seconds=drill_verdict.raised_seconds(records, struck),
            leftovers=left,
        )

    def _runs_next(self, reference: Reference) -> bool:
        """Whether the same daemons run a next job, and give it the right bits."""
        with Ranks(self._plan, self._ready().addresses, NEXT_STEPS) as ranks:
            ranks.await_end(START_SECONDS)
        wanted = reference.steps[:NEXT_STEPS]
        return all(
            one.exit_code == 0 and tuple(digest for _, digest in one.steps) == wanted
            for one in ranks.records
        )
