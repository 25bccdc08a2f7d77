"""What a benchmark run is to measure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING

from gradwire import Wire
from gradwire_ops.lab_plan import (
    DEFAULT_MTU,
    LEAST_MTU,
    MOST_INTERFACES,
    MOST_MTU,
    MOST_NODES,
    LabPlan,
    parse_delay,
    parse_rate,
)
from gradwire_ops.sizes import parse_size
from gradwire_proto.dtypes import BY_NAME
from gradwire_proto.dtypes import DTYPES as INFO
from gradwire_proto.dtypes import OPS as INFO_OPS
from gradwire_proto.v1 import tensor_pb2
from gradwire_proto.wires import may_lose

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_SIZES = "4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB"
CODECS_SIZE = "64MiB"
CODECS_FLAGS = frozenset({"sizes", "repeat"})
"""All that --codecs takes."""
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64")
OPS = ("sum", "mean", "min", "max", "product")
PATHS = ("session", "pg")
PG_OPS = ("all-gather", "reduce-scatter", "broadcast")
"""What a process group is also measured with."""
SCHEDULES = ("auto", "ring", "tree", "direct", "one-shot")


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
    lab: LabPlan | None = None
    """The network between the nodes; None: loopback."""
    path: str = "session"
    """How the ranks get at us: Session, or the process group."""
    daemon_cores: int | None = None
    """Cores that each daemon may use; None: all."""
    workers: int | None = None
    """Processes of each daemon; None: as GRADWIRE_WORKERS says, or one."""
    wire: str = "exact"
    """How sums cross from node to node, in gradwire.Wire's words."""

    @property
    def is_lossy(self) -> bool:
        """Something is lost between the nodes."""
        lossy = Wire.of(self.wire).name != "exact" and self.nodes > 1
        return lossy and may_lose(
            INFO_OPS.get(self.op, tensor_pb2.OP_GATHER), BY_NAME[self.dtype]
        )

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
        fields["sizes"] = tuple(fields["sizes"])
        lab = fields["lab"]
        if lab is not None:
            fields["lab"] = LabPlan(**{**lab, "rates": tuple(lab["rates"])})
        return cls(**fields)


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
    path: str = "session"
    lab: bool = False
    rate: str | None = None
    delay: str | None = None
    mtu: str | None = None
    interfaces: str | None = None
    daemon_cores: str | None = None
    workers: str | None = None
    wire: str = "exact"


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
        op=_choice("--op", flags.op, (*OPS, *PG_OPS), mistakes),
        path=_choice("--path", flags.path, PATHS, mistakes),
        schedule=_choice("--schedule", flags.schedule, SCHEDULES, mistakes),
        daemon_cores=_optional("--daemon-cores", flags.daemon_cores, mistakes),
        workers=_optional("--workers", flags.workers, mistakes),
        wire=_wire(flags.wire, mistakes),
    )
    if plan.dtype.startswith("int") and plan.op == "mean":
        mistakes.append("--op: mean needs a floating-point --dtype")
    if plan.op in PG_OPS:
        mistakes += _shares(plan)
    lab = _lab(flags, plan.nodes, mistakes)
    if mistakes:
        raise PlanError("\n".join(mistakes))
    return replace(plan, lab=lab)


@dataclass(frozen=True, slots=True)
class CodecsPlan:
    """Codecs alone: no node, no rank, one tensor of fp32."""

    size_bytes: int
    repeat: int


def make_codecs_plan(flags: PlanFlags) -> CodecsPlan:
    """As make_plan, with --codecs."""
    mistakes = [
        f"--{field.name.replace('_', '-')}: does not go with --codecs"
        for field in fields(PlanFlags)
        if field.name not in CODECS_FLAGS and getattr(flags, field.name) != field.default
    ]
    text = CODECS_SIZE if flags.sizes == DEFAULT_SIZES else flags.sizes
    sizes = _sizes(text, INFO[BY_NAME["float32"]].itemsize, mistakes)
    if len(sizes) > 1:
        mistakes.append("--sizes: one goes with --codecs, not several")
    repeat = _count("--repeat", flags.repeat, mistakes)
    if mistakes:
        raise PlanError("\n".join(mistakes))
    return CodecsPlan(sizes[0], repeat)


def _shares(plan: Plan) -> list[str]:
    """What keeps such a collective from being measured."""
    mistakes = [] if plan.path == "pg" else [f"--op: {plan.op} goes with --path pg"]
    elements = [size // INFO[BY_NAME[plan.dtype]].itemsize for size in plan.sizes]
    if plan.nodes and plan.ranks_per_node and any(each % plan.ranks for each in elements):
        mistakes.append(f"--sizes: expected multiples of {plan.ranks} elements, one a rank")
    return mistakes


def _lab(flags: PlanFlags, nodes: int, mistakes: list[str]) -> LabPlan | None:
    """None without --lab, and where anything is wrong."""
    words = {
        "--rate": flags.rate,
        "--delay": flags.delay,
        "--mtu": flags.mtu,
        "--interfaces": flags.interfaces,
    }
    if not flags.lab:
        given = [flag for flag, text in words.items() if text is not None]
        mistakes += [f"{flag}: goes with --lab, which is not there" for flag in given]
        return None
    if not 2 <= nodes <= MOST_NODES and not any("--nodes" in line for line in mistakes):
        mistakes.append(f"--nodes: a laboratory has 2 to {MOST_NODES}, for links between them")
    rates = _rates(flags.rate or "none", nodes, mistakes)
    delay_seconds = _delay(flags.delay or "0", mistakes)
    mtu = _between("--mtu", flags.mtu or str(DEFAULT_MTU), (LEAST_MTU, MOST_MTU), mistakes)
    interfaces = _between(
        "--interfaces", flags.interfaces or "1", (1, MOST_INTERFACES), mistakes
    )
    return None if mistakes else LabPlan(nodes, rates, delay_seconds, mtu, interfaces)


def _rates(text: str, nodes: int, mistakes: list[str]) -> tuple[int | None, ...]:
    """One for each node, whether one was given for all or one for each."""
    rates: list[int | None] = []
    for part in text.split(","):
        try:
            rates.append(parse_rate(part))
        except ValueError as error:
            mistakes.append(f"--rate: {error}")
            return ()
    if len(rates) == 1:
        return tuple(rates) * nodes
    if len(rates) != nodes:
        mistakes.append(f"--rate: {len(rates)} rates for {nodes} nodes; give one, or one each")
    return tuple(rates)


def _delay(text: str, mistakes: list[str]) -> float:
    try:
        return parse_delay(text)
    except ValueError as error:
        mistakes.append(f"--delay: {error}")
        return 0.0


def _between(flag: str, text: str, limits: tuple[int, int], mistakes: list[str]) -> int:
    least, most = limits
    if text.isdecimal() and least <= int(text) <= most:
        return int(text)
    mistakes.append(f"{flag}: '{text}' is not a number from {least} to {most}")
    return least


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


def _optional(flag: str, text: str | None, mistakes: list[str]) -> int | None:
    return None if text is None else _count(flag, text, mistakes)


def cores_of(node: int, count: int, available: Sequence[int]) -> tuple[int, ...]:
    """So many cores for this node's daemon: its own, as long as there are enough."""
    if count >= len(available):
        return tuple(available)
    first = node * count
    return tuple(sorted(available[(first + k) % len(available)] for k in range(count)))


def _wire(text: str, mistakes: list[str]) -> str:
    try:
        Wire.of(text)
    except ValueError as error:
        mistakes.append(f"--wire: {error}")
        return "exact"
    return text


def _choice(flag: str, text: str, choices: tuple[str, ...], mistakes: list[str]) -> str:
    if text in choices:
        return text
    mistakes.append(f"{flag}: '{text}' is none of {', '.join(choices)}")
    return choices[0]
