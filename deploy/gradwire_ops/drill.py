"""`gradwire drill`: does a job survive what befalls it, and how soon?"""

from __future__ import annotations

import os
from contextlib import closing
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Console

from gradwire_ops.children import ChildError, exit_on_terminate
from gradwire_ops.drill_field import Field
from gradwire_ops.drill_plan import CORRUPT_CHUNK, DrillFlags, PlanError, make_plan
from gradwire_ops.drill_report import format_seconds, summary, table, title, troubles
from gradwire_ops.lab_plan import LabError
from gradwire_proto.certificates import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from gradwire_ops.drill_plan import DrillPlan
    from gradwire_ops.drill_verdict import Finding


def run(flags: DrillFlags, *, as_json: bool) -> int:
    """Drill and print. 0 where every verdict is the expected one, 1 where not, 2 for usage."""
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        plan = _planned(flags)
    except PlanError as error:
        progress.print(str(error), style="red", markup=False)
        return 2
    findings: list[Finding] = []
    failed = False
    try:
        with exit_on_terminate(), closing(_drill(plan, progress)) as drills:
            for finding in drills:
                findings.append(finding)
                _show_progress(progress, finding, plan.repeat)
    except (ChildError, LabError) as error:
        progress.print(f"the drill failed: {error}", style="red", markup=False)
        failed = True
    show(title(plan), findings, progress, as_json=as_json)
    return 0 if not failed and all(one.good for one in findings) else 1


def _planned(flags: DrillFlags) -> DrillPlan:
    """Raises PlanError."""
    plan = make_plan(flags)
    if CORRUPT_CHUNK in plan.faults and os.environ.get(VARIABLE):
        raise PlanError(
            f"{CORRUPT_CHUNK} can't tell a chunk from other bytes where they are encrypted:"
            f" unset {VARIABLE}, or name another fault"
        )
    return plan


def _drill(plan: DrillPlan, progress: Console) -> Generator[Finding, None, None]:
    digests = set()
    # Those that need the same daemons come together.
    for relayed, faults in groupby(sorted(plan.faults, key=plan.relayed), plan.relayed):
        with Field(plan, relayed=relayed) as field:
            progress.print(f"starting {plan.nodes} daemons" + ", with relays" * relayed)
            reference = field.undisturbed()
            digests.add(reference.digest)
            if len(digests) > 1:
                raise ChildError("two undisturbed runs ended with different parameters")
            progress.print(f"  undisturbed: {reference.seconds:.2f} s")
            for fault in faults:
                progress.print(fault)
                yield from field.findings(fault)
        if field.left:
            raise ChildError(f"left behind by the daemons: {'; '.join(field.left)}")


def show(title: str, findings: Sequence[Finding], progress: Console, *, as_json: bool) -> None:
    """The findings on standard output, and what is wrong with them on the other."""
    console = Console(highlight=False)
    if as_json:
        console.print_json(data=[one.to_dict() for one in findings])
    elif findings:
        console.print(table(title, findings))
        console.print(summary(findings), markup=False)
    for trouble in troubles(findings):
        progress.print(trouble, style="red", markup=False)


def _show_progress(progress: Console, one: Finding, repeat: int) -> None:
    found, again = map(format_seconds, (one.detect_seconds, one.recover_seconds))
    progress.print(
        f"  [{one.repetition + 1}/{repeat}] {one.what}: {one.verdict};"
        f" detected after {found}, going on after {again}",
        markup=False,
    )
