"""Which numbered cases carry a test, and which do not: `make cases`.

A test of a case says so with `@pytest.mark.case("M05")`. The marks are read, not run, so this
needs nothing that the tests need.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parent

CASES = {
    "M01": "the hook gives what plain DDP gives",
    "M03": "averaged exactly once",
    "M04": "AVG divides by the number of ranks",
    "M05": "mean over ranks, not over nodes, where nodes have unequal numbers of ranks",
    "M06": "fp16 neither overflows nor underflows on the way",
    "M07": "bf16 is rounded once, not at every hop",
    "M08": "a NaN stays in its element, on all ranks, and all skip the same steps",
    "M10": "what a lossy wire owes a parameter never goes to another one",
    "M11": "low-rank compression begins when the buckets stay as they are",
    "M14": "codes are undone before anything is averaged",
    "M15": "fp16 with loss scaling",
    "M17": "uneven inputs with join()",
    "M19": "sparse gradients are averaged, or refused by name",
    "M22": "every dtype: the right sum or a clear refusal",
    "M23": "several dtypes in one model",
    "M24": "tensors of no, one and few elements",
    "M25": "a job of one rank",
    "M27": "the size of the buckets changes nothing",
    "M28": "replicas stay bit-identical",
    "M29": "bytes that change on the way are sent again, and make no other mean",
    "M31": "ranks that bring different buckets fail, and are named",
    "M33": "buckets over 2 GiB",
    "M34": "ranks count alike, whatever their batches, unless they are weighed",
    "M37": "initial parameters and buffers reach every rank",
    "P01": "large tensors are not slower than smaller ones",
    "P02": "a tensor is a message's bytes, not encoded element by element",
    "P04": "as many connections between daemons as were asked for",
    "P05": "a long round trip does not limit the rate",
    "P06": "memory stays bounded where somebody does not read",
    "P07": "small models: steps stay alike, and nothing is set up anew",
    "P08": "buckets leave while backward still runs",
    "P10": "the wire is exact unless another is asked for",
    "P12": "a daemon that has one core",
    "R01": "a rank that dies is named to all others, and how, and in which bucket",
    "R02": "a node that falls silent is named in time, and goes on where it comes back sooner",
    "R03": "nothing of an earlier life of a job is taken for the next one's",
    "R04": "timeouts of call and group are honoured, and quoted",
    "R06": "who does not come to a collective is named, once, and counted",
    "R08": "a daemon that is killed and comes back changes no bit",
    "R09": "a daemon that is back is found soon",
    "R11": "a rank may start before its daemon",
    "R12": "no side asks more often whether the other is there than that one allows",
    "R14": "open streams keep nobody else out",
    "R16": "two daemons can't have one address",
    "R18": "two jobs on the same daemons do not disturb one another",
    "R21": "forked children and their ends do no harm",
    "R22": "a daemon stops when it is told to, whatever is under way",
    "R25": "a rank that died while it joined is named, and does not count for ever",
    "R26": "times that would hide one another are refused",
    "R28": "tensors of all sizes around those of messages",
    "R29": "event loops of the training script and of the daemon do not meet",
    "E01": "the process group has futures, works and all collectives",
    "E06": "compiled models train as they do uncompiled",
    "E07": "proxies in the environment are none of our business",
    "E09": "interfaces can be named, and a mistake is told which there are",
    "E10": "hosts with either family of addresses, or both",
    "E11": "the shipped compose file has room for arenas, whatever a container has for its own",
    "E13": "a counter falls only where a daemon restarts, and says when that was",
    "E15": "a metrics port that is taken is an error at the start, and a quick restart works",
    "E17": "a launcher forms a job again without a rank that died, or a node that left",
    "S01": "nobody poses as a node whose certificate he has not, or as a rank of another job",
    "S02": "nothing received is unpickled or run",
    "S03": "listening beyond loopback takes certificates, or the word insecure",
    "S05": "new certificates are used in mid-job, and broken ones are not",
    "S07": "a message that unpacks, or claims, to be huge takes no memory",
    "S08": "messages that make no sense are refused, and harm nobody",
}


def marks(source: str) -> Iterator[str]:
    """Yield the ids of all `pytest.mark.case(...)` in a module's source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.case":
            yield from (str(ast.literal_eval(argument)) for argument in node.args)


def found() -> dict[str, list[str]]:
    """Return, for each id that some test bears, the test files that bear it."""
    files: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for case in sorted(set(marks(path.read_text()))):
            files.setdefault(case, []).append(str(path.relative_to(TESTS)))
    return files


def main() -> int:
    """Print a line per case; return 1 if one has no test or a mark names no case."""
    files = found()
    for case, claim in CASES.items():
        print(f"{case}  {', '.join(files.get(case, ['NO TEST'])):40}  {claim}")
    untested, unknown = sorted(CASES.keys() - files), sorted(files.keys() - CASES)
    if untested:
        print(f"untested: {', '.join(untested)}", file=sys.stderr)
    if unknown:
        print(f"marks that name no case: {', '.join(unknown)}", file=sys.stderr)
    return 1 if untested or unknown else 0


if __name__ == "__main__":
    sys.exit(main())
