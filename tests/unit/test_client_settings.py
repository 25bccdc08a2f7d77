from __future__ import annotations

import os
import re
from typing import Any

import pytest

from gradwire import ConnectError
from gradwire._settings import Settings, load
from gradwire._wire import Wire


@pytest.fixture(autouse=True)
def _no_settings_of_this_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GRADWIRE_")]:
        monkeypatch.delenv(name)


def settings(**given: object) -> Settings:
    times = ("timeout", "connect_timeout", "warn_after", "first_timeout")
    names = (*times, "daemon", "insecure", "wire")
    asked: dict[str, Any] = {name: given.get(name) for name in names}
    return load(**asked)


def mistakes(**given: object) -> list[str]:
    with pytest.raises(ConnectError) as caught:
        settings(**given)
    return str(caught.value).splitlines()


def test_the_defaults() -> None:
    assert settings() == Settings(
        timeout=60.0,
        connect_timeout=30.0,
        warn_after=15.0,
        first_timeout=600.0,
        daemon=None,
        node=None,
        shared_memory=True,
        insecure=False,
        resume=30.0,
    )


def test_ranks_are_named_after_a_quarter_of_the_timeout() -> None:
    assert settings(timeout=8.0).warn_after == 2.0
    assert settings(timeout=8.0, warn_after=1.0).warn_after == 1.0


def test_the_environment_says_what_no_argument_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "GRADWIRE_TIMEOUT": "7.5",
        "GRADWIRE_CONNECT_TIMEOUT": "3",
        "GRADWIRE_WARN_AFTER": "1",
        "GRADWIRE_FIRST_TIMEOUT": "70",
        "GRADWIRE_DAEMON": "unix:/run/other.sock",
        "GRADWIRE_NODE": "left",
        "GRADWIRE_SHM": "off",
        "GRADWIRE_INSECURE": "yes",
        "GRADWIRE_RESUME": "5",
    }.items():
        monkeypatch.setenv(name, value)
    expected = Settings(7.5, 3.0, 1.0, 70.0, "unix:/run/other.sock", "left", False, True, 5.0)
    assert settings() == expected
    assert settings(timeout=9.0, insecure=False, daemon="h:1") == Settings(
        9.0, 3.0, 1.0, 70.0, "h:1", "left", False, False, 5.0
    )


def test_certificates_and_doing_without_exclude_one_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRADWIRE_CERTS", "/certs")
    assert settings().certs == "/certs"
    (line,) = mistakes(insecure=True)
    for words in ("GRADWIRE_CERTS=/certs", "insecure", "choose one"):
        assert words in line


def test_the_wire_comes_from_the_call_or_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRADWIRE_WIRE", "topk:ratio=0.05,feedback=off")
    assert settings().wire == Wire("topk", ratio=0.05, feedback=False)
    assert settings(wire="bf16").wire == Wire("bf16")
    assert settings(wire=Wire("int8", seed=3)).wire == Wire("int8", seed=3)
    assert settings(wire=[("*.bias", "exact"), ("*", "int8")]).wire == (
        ("*.bias", Wire()),
        ("*", Wire("int8")),
    )


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        ("int4", "expected a wire of exact, bf16, fp16, int8, fp8, topk, got 'int4'"),
        ("", "expected a wire of exact, bf16, fp16, int8, fp8, topk, got ''"),
        ("topk:ratio=2", "expected a ratio above 0, at most 1, got 2.0"),
        ("topk:ratio=few", "ratio=few: expected a number above 0, at most 1"),
        ("bf16:ratio=0.5", "wire bf16 has no ratio; topk has"),
        ("bf16:rounding=stochastic", "wire bf16 has no stochastic rounding; int8 and fp8"),
        ("int8:bits=4", "expected an option of ratio, rounding, seed, feedback, got 'bits'"),
        ("exact:feedback=on", "wire exact loses nothing that could be fed back"),
        (7, "expected a wire, a function, or a list of pairs of a pattern and a wire, got 7"),
        (["ab"], "expected a wire, a function, or a list of pairs"),
        ({"*": "int8"}, "expected a wire, a function, or a list of pairs"),
        ([], "expected a wire, a function, or a list of pairs"),
        ([("*", "int4")], "expected a wire of exact, bf16, fp16, int8, fp8, topk, got 'int4'"),
    ],
)
def test_a_wire_that_does_not_exist_is_told_with_those_that_do(
    wire: object, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (line,) = mistakes(wire=wire)
    assert line.startswith(f"wire={wire!r}: {words}")
    if isinstance(wire, str) and wire:
        monkeypatch.setenv("GRADWIRE_WIRE", wire)
        (line,) = mistakes()
        assert line.startswith(f"GRADWIRE_WIRE={wire}: {words}")


def test_every_mistake_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_TIMEOUT", "long")
    monkeypatch.setenv("GRADWIRE_SHM", "perhaps")
    assert mistakes(connect_timeout=0.0, warn_after=float("nan"), daemon="host") == [
        "GRADWIRE_TIMEOUT=long: expected seconds, such as 60 or 0.5",
        "GRADWIRE_SHM=perhaps: expected on or off",
        "connect_timeout=0.0: expected seconds above 0, at most 2592000",
        "warn_after=nan: expected seconds above 0, at most 2592000",
        "daemon=host: expected HOST:PORT or [IPV6]:PORT, with a port of 0 to 65535, got 'host';"
        " or unix:/path",
    ]


@pytest.mark.case("R26")
@pytest.mark.parametrize(
    ("given", "got"),
    [
        ({"timeout": 10.0, "warn_after": 10.0}, "warn_after=10, timeout=10, first_timeout=100"),
        ({"timeout": 10.0, "warn_after": 20.0}, "warn_after=20, timeout=10, first_timeout=100"),
        (
            {"timeout": 10.0, "first_timeout": 9.0},
            "warn_after=2.5, timeout=10, first_timeout=9",
        ),
    ],
)
def test_times_of_which_one_would_hide_another_are_refused_with_their_order(
    given: dict[str, float], got: str
) -> None:
    assert mistakes(**given) == [
        f"{got}: expected warn_after below timeout, and timeout at most first_timeout"
    ]


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_times_are_seconds_above_0(seconds: float) -> None:
    assert mistakes(timeout=seconds, warn_after=1.0) == [
        f"timeout={seconds}: expected seconds above 0, at most 2592000"
    ]


@pytest.mark.parametrize(
    "daemon", ["h:1", "127.0.0.1:50700", "[::1]:50700", "unix:/run/x.sock"]
)
def test_a_daemon_has_one_of_three_forms(daemon: str) -> None:
    assert settings(daemon=daemon).daemon == daemon


@pytest.mark.parametrize("daemon", ["unix:", ":1", "h", "h:", "h:0", "h:65536", "h:x"])
def test_other_forms_are_refused(daemon: str) -> None:
    (line,) = mistakes(daemon=daemon)
    assert re.match(rf"daemon={daemon}: expected", line)


def test_an_ipv6_address_without_brackets_is_shown_the_form() -> None:
    (line,) = mistakes(daemon="fe80::1:50700")
    assert "[fe80::1]:50700" in line
