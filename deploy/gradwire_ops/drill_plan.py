"""What a drill is to do. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

from gradwire_ops.lab_plan import parse_rate
from gradwire_ops.sizes import parse_size

KILL_RANK, KILL_DAEMON, STOP_DAEMON = "kill-rank", "kill-daemon", "stop-daemon"
RESET_LINK, PARTITION, SLOW_LINK = "reset-link", "partition", "slow-link"
CORRUPT_CHUNK = "corrupt-chunk"
FAULTS = (
    KILL_RANK, KILL_DAEMON, STOP_DAEMON, RESET_LINK, PARTITION, SLOW_LINK, CORRUPT_CHUNK,
)  # fmt: skip
ALL = "all"
ON_LINKS = frozenset({RESET_LINK, PARTITION, SLOW_LINK, CORRUPT_CHUNK})

EARLIEST, LATEST = 0.15, 0.6
"""Part of the steps between which a fault strikes."""
FEWEST_STEPS = 10
ELEMENT_BYTES = 4
SMALLEST_BYTES = 64 << 10
SMALL_ELEMENTS = 1000
_PARTS = (0.5, 0.3, 0.2)
_BUCKET_SEED = 0x5EED


class PlanError(Exception):
    """Flags that make no drill; a mistake a line."""


@dataclass(frozen=True, slots=True)
class DrillFlags:
    """As they were given."""

    fault: str
    repeat: int
    seed: int
    nodes: int
    ranks: int
    steps: int
    size: str
    seconds: str
    rate: str
    timeout: float
    resume: float | None
    lab: bool = False


@dataclass(frozen=True, slots=True)
class DrillPlan:
    """A job, and what befalls it how often."""

    faults: tuple[str, ...]
    repeat: int
    seed: int
    nodes: int
    ranks_per_node: int
    steps: int
    elements: tuple[int, ...]
    """Of each bucket of a step."""
    seconds: tuple[float, float]
    """How long what passes lasts, at least and at most."""
    rate: int
    """Bits per second of a link that is slow."""
    timeout: float
    resume: float | None
    """None: the ranks' own default."""
    lab: bool

    def relayed(self, fault: str) -> bool:
        """Whether it needs relays between the daemons; a laboratory's links need none."""
        return fault in ON_LINKS and not (self.lab and fault in (PARTITION, SLOW_LINK))

    @property
    def layout(self) -> tuple[int, ...]:
        """Node of each rank."""
        ranks = range(self.ranks_per_node)
        return tuple(node for node in range(self.nodes) for _ in ranks)


@dataclass(frozen=True, slots=True)
class Moment:
    """When a fault strikes, where, and for how long; drawn once for each repetition."""

    step: int
    part: float
    """Of the step after it."""
    victim: float
    """0 to 1: picks one of any number."""
    seconds: float
    place: float
    """0 to 1: where in a chunk."""

    def pick(self, count: int, first: int = 0) -> int:
        """A number from `first`, below `count`."""
        return first + int(self.victim * (count - first))


def make_plan(flags: DrillFlags) -> DrillPlan:
    """Raises PlanError with all mistakes."""
    mistakes: list[str] = []
    faults = FAULTS if flags.fault == ALL else (flags.fault,)
    if not set(faults) <= set(FAULTS):
        mistakes.append(f"{flags.fault}: expected one of {', '.join(FAULTS)}, or {ALL}")
    for name, value, least in (
        ("--repeat", flags.repeat, 1),
        ("--nodes", flags.nodes, 2 if ON_LINKS & set(faults) or flags.lab else 1),
        ("--ranks", flags.ranks, 1),
        ("--steps", flags.steps, FEWEST_STEPS),
    ):
        if value < least:
            mistakes.append(f"{name} {value}: expected {least} at least")
    if flags.timeout <= 0:
        mistakes.append(f"--timeout {flags.timeout:g}: expected seconds above 0")
    if flags.resume is not None and flags.resume < 0:
        mistakes.append(f"--resume {flags.resume:g}: expected seconds, 0 for none")
    elements, seconds, rate = (
        _elements(flags, mistakes),
        _seconds(flags, mistakes),
        _rate(flags, mistakes),
    )
    if mistakes:
        raise PlanError("\n".join(mistakes))
    return DrillPlan(
        faults=faults,
        repeat=flags.repeat,
        seed=flags.seed,
        nodes=flags.nodes,
        ranks_per_node=flags.ranks,
        steps=flags.steps,
        elements=elements,
        seconds=seconds,
        rate=rate,
        timeout=flags.timeout,
        resume=flags.resume,
        lab=flags.lab,
    )


def _elements(flags: DrillFlags, mistakes: list[str]) -> tuple[int, ...]:
    try:
        size = parse_size(flags.size)
    except ValueError as error:
        mistakes.append(f"--size: {error}")
        return ()
    if size < SMALLEST_BYTES:
        mistakes.append(f"--size {flags.size}: expected {SMALLEST_BYTES >> 10}KiB at least")
    return buckets(size)


def buckets(size: int) -> tuple[int, ...]:
    """Elements of each bucket: three of unlike sizes, and in their midst a small one."""
    first, *others = (int(size * part) // ELEMENT_BYTES for part in _PARTS)
    return (first, SMALL_ELEMENTS, *others)


def _seconds(flags: DrillFlags, mistakes: list[str]) -> tuple[float, float]:
    try:
        low, high = map(float, flags.seconds.split(","))
    except ValueError:
        low = high = -1.0
    if not 0 < low <= high:
        mistakes.append(f"--seconds {flags.seconds}: expected the least and the most, like 1,8")
    return low, high


def _rate(flags: DrillFlags, mistakes: list[str]) -> int:
    try:
        return parse_rate(flags.rate) or _refuse_none(flags.rate)
    except ValueError as error:
        mistakes.append(f"--rate: {error}")
        return 0


def _refuse_none(text: str) -> int:
    raise ValueError(f"'{text}' is not slow; write for instance 50mbit")


def moment(plan: DrillPlan, fault: str, repetition: int) -> Moment:
    """The same for the same seed, whatever else is drilled."""
    draw = random.Random(f"{plan.seed}/{fault}/{repetition}")  # noqa: S311 - not a secret
    return Moment(
        step=draw.randint(int(plan.steps * EARLIEST), int(plan.steps * LATEST)),
        part=draw.random(),
        victim=draw.random(),
        seconds=draw.uniform(*plan.seconds),
        place=draw.random(),
    )
