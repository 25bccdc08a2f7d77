"""What a benchmark run is to measure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from gradwire_ops.sizes import parse_size
from gradwire_proto.dtypes import BY_NAME
from gradwire_proto.dtypes import DTYPES as INFO

DEFAULT_SIZES = "4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB"
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64")
OPS = ("sum", "mean", "min", "max", "product")
SCHEDULES = ("auto", "ring", "tree", "direct")


class PlanError(Exception):
    """The flags are wrong; the text lists every mistake, one a line."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes are bytes of the tensor on one rank, whole elements of them."""

    sizes: tuple[int, ...]
    nodes: int
    ranks_per_node: int
    repeat: int
    dtype: str
    op: str
    schedule: str

    @property
    def ranks(self) -> int:
        """Ranks on all nodes together."""
        return self.nodes * self.ranks_per_node

    def to_json(self) -> str:
        """For the rank processes."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """What to_json wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "sizes": tuple(fields["sizes"])})


@dataclass(frozen=True, slots=True)
class PlanFlags:
    """The flags as they were written."""

    sizes: str = DEFAULT_SIZES
    nodes: str = "1"
    ranks_per_node: str = "2"
    repeat: str = "7"
    dtype: str = "float32"
    op: str = "sum"
    schedule: str = "auto"


def make_plan(flags: PlanFlags) -> Plan:
    """The plan these flags ask for. Raises PlanError with all that is wrong with them."""
    mistakes: list[str] = []
    dtype = _choice("--dtype", flags.dtype, DTYPES, mistakes)
    plan = Plan(
        sizes=_sizes(flags.sizes, INFO[BY_NAME[dtype]].itemsize, mistakes),
        nodes=_count("--nodes", flags.nodes, mistakes),
        ranks_per_node=_count("--ranks-per-node", flags.ranks_per_node, mistakes),
        repeat=_count("--repeat", flags.repeat, mistakes),
        dtype=dtype,
        op=_choice("--op", flags.op, OPS, mistakes),
        schedule=_choice("--schedule", flags.schedule, SCHEDULES, mistakes),
    )
    if plan.dtype.startswith("int") and plan.op == "mean":
        mistakes.append("--op: mean needs a floating-point --dtype")
    if mistakes:
        raise PlanError("\n".join(mistakes))
    return plan


def _sizes(text: str, itemsize: int, mistakes: list[str]) -> tuple[int, ...]:
    sizes = []
    for part in text.split(","):
        try:
            elements = parse_size(part) // itemsize
        except ValueError as error:
            mistakes.append(f"--sizes: {error}")
            continue
        if not elements:
            mistakes.append(f"--sizes: '{part}' is less than one element of {itemsize} bytes")
        sizes.append(elements * itemsize)
    return tuple(sizes)


def _count(flag: str, text: str, mistakes: list[str]) -> int:
    if text.isdecimal() and int(text) >= 1:
        return int(text)
    mistakes.append(f"{flag}: '{text}' is not a number of at least 1")
    return 1


def _choice(flag: str, text: str, choices: tuple[str, ...], mistakes: list[str]) -> str:
    if text in choices:
        return text
    mistakes.append(f"{flag}: '{text}' is none of {', '.join(choices)}")
    return choices[0]
