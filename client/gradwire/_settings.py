"""What connect() accepts, from its arguments and from GRADWIRE_* at once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from gradwire._errors import ConnectError
from gradwire._wire import EXACT, Wire
from gradwire._wires import read
from gradwire_proto.addresses import split_address
from gradwire_proto.certificates import VARIABLE
from gradwire_proto.dtypes import LEAST_WEIGHT, MOST_WEIGHT, is_weight

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gradwire._wires import Rule, Wiring

T = TypeVar("T")

LONGEST_SECONDS = 30 * 24 * 3600.0
"""A month; more than that means for ever, and the system's clocks can't all count it."""

RESUME_SECONDS = 30.0
"""Long enough for a daemon's restart, and short beside what a night costs."""

FIRST_STEP_FACTOR = 10
"""In the first step ranks may compile for minutes."""

POLICIES = ("pass", "raise", "skip")
"""What may become of a result that is not finite."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One rank's settings; times in seconds."""

    timeout: float
    connect_timeout: float
    warn_after: float
    first_timeout: float
    """Of collectives of DDP's first step."""
    daemon: str | None
    node: str | None
    shared_memory: bool
    insecure: bool
    resume: float = 30.0
    wire: Rule = EXACT
    weight: float = 1.0
    nonfinite: str = "pass"
    verify_every: int = 0
    """Steps; 0: never."""
    certs: str = ""
    """Folder of certificates; none: those who say `insecure` do without."""


def load(  # noqa: PLR0913 - keywords only, as connect's
    *,
    timeout: float | None,
    connect_timeout: float | None,
    warn_after: float | None,
    first_timeout: float | None = None,
    daemon: str | None,
    insecure: bool | None,
    resume: float | None = None,
    wire: Wiring | None,
    weight: float = 1.0,
    nonfinite: str | None = None,
    verify: int = 0,
    watches: bool = False,
) -> Settings:
    """Arguments before environment before defaults. ConnectError lists all mistakes."""
    mistakes: list[str] = []

    def pick(name: str, given: T | None, parse: Callable[[str], T], default: T) -> T:
        text = os.environ.get(name)
        if given is not None or not text:
            return default if given is None else given
        try:
            return parse(text)
        except ValueError as error:
            mistakes.append(f"{name}={text}: {error}")
            return default

    rule: Rule | None = _rule(wire, mistakes)
    patience = pick("GRADWIRE_TIMEOUT", timeout, _seconds, 60.0)
    settings = Settings(
        timeout=patience,
        connect_timeout=pick("GRADWIRE_CONNECT_TIMEOUT", connect_timeout, _seconds, 30.0),
        warn_after=pick("GRADWIRE_WARN_AFTER", warn_after, _seconds, patience / 4),
        first_timeout=pick(
            "GRADWIRE_FIRST_TIMEOUT",
            first_timeout,
            _seconds,
            min(FIRST_STEP_FACTOR * patience, LONGEST_SECONDS) if patience > 0 else 1.0,
        ),
        daemon=pick("GRADWIRE_DAEMON", daemon, str, "") or None,
        node=os.environ.get("GRADWIRE_NODE") or None,
        shared_memory=pick("GRADWIRE_SHM", None, _switch, default=True),
        insecure=pick("GRADWIRE_INSECURE", insecure, _switch, default=False),
        resume=pick("GRADWIRE_RESUME", resume, _seconds, RESUME_SECONDS),
        wire=rule if rule is not None else pick("GRADWIRE_WIRE", None, Wire.of, EXACT),
        weight=weight,
        nonfinite=pick("GRADWIRE_NONFINITE", nonfinite, str, "pass"),
        verify_every=verify,
        certs=os.environ.get(VARIABLE, ""),
    )
    mistakes += _mistakes(settings, watches=watches)
    if mistakes:
        raise ConnectError("\n".join(mistakes))
    return settings


def _rule(wire: Wiring | None, mistakes: list[str]) -> Rule | None:
    if wire is None:
        return None
    try:
        return read(wire)
    except ValueError as error:
        mistakes.append(f"wire={wire!r}: {error}")
        return EXACT


def _time_mistakes(settings: Settings) -> Iterator[str]:
    times = ("timeout", "connect_timeout", "warn_after", "first_timeout")
    seconds = {name: getattr(settings, name) for name in times}
    wrong = {name: each for name, each in seconds.items() if not 0 < each <= LONGEST_SECONDS}
    for name, each in wrong.items():
        limit = f"at most {LONGEST_SECONDS:.0f}"
        yield f"{name}={each}: expected seconds above 0, {limit}"
    if not settings.resume >= 0:
        yield f"resume={settings.resume}: expected seconds, 0 for not at all"
    if not wrong and (mistake := _disorder(settings)):
        yield mistake


def _mistakes(settings: Settings, *, watches: bool) -> Iterator[str]:
    """What is wrong with values that could be read."""
    yield from _time_mistakes(settings)
    if settings.daemon is not None and (mistake := _address_mistake(settings.daemon)):
        yield f"daemon={settings.daemon}: {mistake}"
    if settings.certs and settings.insecure:
        yield (
            f"{VARIABLE}={settings.certs} asks for certificates and insecure"
            " (GRADWIRE_INSECURE) for none: choose one"
        )
    if not is_weight(settings.weight):
        weights = f"0, or {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}"
        yield f"weight={settings.weight}: expected {weights}"
    if settings.nonfinite not in POLICIES:
        yield f"nonfinite={settings.nonfinite}: expected one of {', '.join(POLICIES)}"
    if settings.verify_every < 0:
        yield f"verify={settings.verify_every}: expected steps, True or False"
    if settings.verify_every > 0 and not watches:
        yield "verify needs the model: connect(model=..., verify=...)"


def _disorder(settings: Settings) -> str:
    """Which time would be over before one that it has to outlast."""
    if settings.warn_after < settings.timeout <= settings.first_timeout:
        return ""
    return (
        f"warn_after={settings.warn_after:g}, timeout={settings.timeout:g},"
        f" first_timeout={settings.first_timeout:g}: expected warn_after below timeout, and"
        " timeout at most first_timeout"
    )


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("expected seconds, such as 60 or 0.5") from None


def _switch(text: str) -> bool:
    values = {"1": True, "on": True, "true": True, "yes": True}
    values |= {"0": False, "off": False, "false": False, "no": False}
    if text.lower() not in values:
        raise ValueError("expected on or off")
    return values[text.lower()]


def _address_mistake(address: str) -> str:
    if address.startswith("unix:"):
        return "" if len(address) > len("unix:") else "expected unix:/path/of/the/socket"
    try:
        _, port = split_address(address)
    except ValueError as error:
        return f"{error}; or unix:/path"
    return "" if port else "expected a port of 1 to 65535, got 0"
