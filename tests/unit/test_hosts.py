"""Which Host headers the metrics page answers."""

from __future__ import annotations

import pytest

from gradwire_server.hosts import Hosts

LOCAL = ["localhost", "localhost:9470", "LOCALHOST.", "127.0.0.1:9470", "127.9.9.9", "[::1]:9"]
ELSEWHERE = ["10.0.0.5:9470", "[fd00::5]:9470", "192.0.2.1"]
NAMES = [
    "daemon:9470",
    "gradwire.jobs.svc.cluster.local:9470",
    "rebound.example",
    "localhost.evil",
]
NONSENSE = ["", " ", "a@localhost", "localhost,rebound.example", "localhost:x", "[::1", "a/b"]


@pytest.mark.parametrize("listen", ["127.0.0.1", "::1", "localhost"])
def test_on_loopback_there_are_its_own_names_alone(listen: str) -> None:
    hosts = Hosts(listen)
    assert all(map(hosts.welcome, LOCAL))
    assert not any(map(hosts.welcome, [*ELSEWHERE, *NAMES, *NONSENSE]))


@pytest.mark.parametrize("listen", ["0.0.0.0", "::", "10.0.0.5", "node7"])  # noqa: S104
def test_beyond_loopback_any_name_is_good(listen: str) -> None:
    assert all(map(Hosts(listen).welcome, [*LOCAL, *ELSEWHERE, *NAMES]))


def test_beyond_loopback_given_names_are_the_only_ones() -> None:
    hosts = Hosts("0.0.0.0", "daemon, Gradwire.jobs")  # noqa: S104
    assert all(map(hosts.welcome, [*LOCAL, *ELSEWHERE, "daemon:9470", "gradwire.JOBS."]))
    assert not any(map(hosts.welcome, [*NAMES[1:], *NONSENSE]))


def test_on_loopback_given_names_are_good_too() -> None:
    hosts = Hosts("127.0.0.1", "train.example.org")
    assert all(map(hosts.welcome, [*LOCAL, "train.example.org"]))
    assert not any(map(hosts.welcome, [*ELSEWHERE, *NAMES]))


def test_who_says_no_name_is_no_browser() -> None:
    assert Hosts("127.0.0.1").welcome(None)
