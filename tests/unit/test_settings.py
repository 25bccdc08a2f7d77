"""What an operator may set, and what is said where it is wrong."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from gradwire_proto.addresses import is_loopback, split_address
from gradwire_server.errors import SettingsError
from gradwire_server.settings import Settings, load

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _no_settings_of_this_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GRADWIRE_")]:
        monkeypatch.delenv(name)


def mistakes(flags: dict[str, object]) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(flags)
    return str(caught.value).splitlines()


def test_the_defaults_open_nothing() -> None:
    settings = load({})
    assert (settings.listen, settings.metrics_listen) == ("127.0.0.1:50700", "127.0.0.1:9470")
    assert not settings.insecure


def test_flags_win_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gradwire.toml"
    file.write_text('slots = 3\nschedule = "ring"\nlog_level = "debug"\n')
    monkeypatch.setenv("GRADWIRE_SLOTS", "4")
    monkeypatch.setenv("GRADWIRE_SCHEDULE", "tree")
    settings = load({"config": str(file), "slots": 5, "schedule": None})
    assert (settings.slots, settings.schedule, settings.log_level) == (5, "tree", "debug")


def test_the_environment_may_name_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gradwire.toml"
    file.write_text("slots = 7")
    monkeypatch.setenv("GRADWIRE_CONFIG", str(file))
    assert load({}).slots == 7


def test_every_mistake_is_listed_one_a_line_with_what_was_given() -> None:
    lines = mistakes({
        "listen": "127.0.0.1",
        "metrics_listen": "localhost:70000",
        "metrics_hosts": "train.example, daemon:9470",
        "slots": 1,
        "chunk_bytes": 5000,
        "kernel_threads": -7,
        "schedule": "star",
        "log_level": "loud",
        "shm_dir": "/no/such/folder",
    })  # fmt: skip
    assert [line.split(":")[0] for line in lines] == [
        "listen=127.0.0.1",
        "metrics_listen=localhost",
        "metrics_hosts=train.example, daemon",
        "shm_dir=/no/such/folder",
        "slots=1",
        "kernel_threads=-7",
        "schedule=star",
        "log_level=loud",
    ]


def test_a_chunk_holds_whole_elements_of_every_type() -> None:
    assert mistakes({"chunk_bytes": 5004}) == ["chunk_bytes=5004: expected a multiple of 8"]


def test_mistakes_in_the_environment_and_in_the_file_are_listed_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gradwire.toml"
    file.write_text('schedule = "star"\nport = 50700\n')
    monkeypatch.setenv("GRADWIRE_SLOTS", "many")
    text = "\n".join(mistakes({"config": str(file)}))
    for named in ("slots=many", "schedule=star", "port=50700"):
        assert named in text


def test_a_file_that_is_missing_or_no_toml_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    assert f"config={missing}" in mistakes({"config": str(missing)})[0]
    broken = tmp_path / "broken.toml"
    broken.write_text("slots = ")
    assert f"config={broken}" in mistakes({"config": str(broken)})[0]


def test_an_unknown_flag_is_refused() -> None:
    assert "ports=1" in mistakes({"ports": 1})[0]


def test_an_ipv6_address_without_brackets_is_shown_the_form() -> None:
    (line,) = mistakes({"listen": "::1:50700"})
    assert "[::1]:50700" in line


def test_ipv6_in_brackets_is_taken() -> None:
    assert load({"listen": "[::1]:0"}).listen == "[::1]:0"
    assert split_address("[fe80::1]:50700") == ("fe80::1", 50700)


@pytest.mark.parametrize("listen", ["0.0.0.0:50700", "[::]:50700", "10.1.2.3:0", "node7:50700"])
def test_listening_to_other_hosts_takes_the_word_insecure(
    listen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if there were such a node.
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [()])
    (line,) = mistakes({"listen": listen})
    for word in (listen, "--insecure", "GRADWIRE_INSECURE=1", "127.0.0.1"):
        assert word in line
    assert load({"listen": listen, "insecure": True}).listen == listen


def test_one_address_of_several_that_others_reach_takes_the_word_insecure() -> None:
    (line,) = mistakes({"listen": "127.0.0.1:1,10.1.2.3:1"})
    assert "--insecure" in line
    listen = "127.0.0.1:1,127.0.0.2:1"
    assert load({"listen": listen}).listen == listen


@pytest.mark.parametrize("listen", ["127.0.0.1:1,", "127.0.0.1:1,host", "127.0.0.1:1,,[::1]:1"])
def test_every_address_of_a_list_is_looked_at(listen: str) -> None:
    assert mistakes({"listen": listen})[0].startswith(f"listen={listen}: ")


@pytest.mark.parametrize("connections", [-1, 65])
def test_connections_are_few(connections: int) -> None:
    assert mistakes({"connections": connections})[0].startswith(f"connections={connections}: ")


def test_with_certificates_all_may_listen_and_insecure_is_refused(tmp_path: Path) -> None:
    settings = load({"listen": "0.0.0.0:50700", "certs": str(tmp_path)})
    assert (settings.certs, settings.insecure, settings.open) == (tmp_path, False, False)
    (line,) = mistakes({"certs": str(tmp_path), "insecure": True})
    for words in (f"certs={tmp_path}", "insecure", "choose one", "GRADWIRE_CERTS"):
        assert words in line


@pytest.mark.parametrize("name", ["certs", "token_key", "trace"])
def test_an_empty_path_is_none(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"GRADWIRE_{name.upper()}", "")
    assert getattr(load({}), name) is None


def test_only_what_is_insecure_and_beyond_loopback_is_open() -> None:
    assert load({"listen": "0.0.0.0:50700", "insecure": True}).open
    assert not load({"listen": "127.0.0.1:50700", "insecure": True}).open


def test_insecure_may_be_said_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_INSECURE", "1")
    assert load({"listen": "0.0.0.0:50700"}).insecure


@pytest.mark.parametrize("address", ["", "host", ":50700", "host:", "host:port", "host:65536"])
def test_an_address_needs_a_host_and_a_port(address: str) -> None:
    with pytest.raises(ValueError, match="expected HOST:PORT"):
        split_address(address)


def test_an_empty_metrics_address_switches_the_page_off() -> None:
    assert load({"metrics_listen": ""}).metrics_listen == ""


def test_an_empty_listen_address_is_refused() -> None:
    assert mistakes({"listen": ""})[0].startswith("listen=")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_is_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "::", "::2", "127.example.org", "node7"])
def test_other_hosts_reach_other_addresses(host: str) -> None:
    assert not is_loopback(host)


def test_settings_are_frozen() -> None:
    settings = load({})
    with pytest.raises(ValueError, match="frozen"):
        settings.slots = 3
    assert isinstance(settings, Settings)


@pytest.mark.parametrize(
    "advertise",
    ["host:port", "10.0.0.1:70000", "::", "[::]:50700", "10.0.0.1,0.0.0.0", "a,,b", "a,"],
)
def test_an_advertised_address_that_leads_nowhere_is_refused(advertise: str) -> None:
    (line,) = mistakes({"advertise": advertise})
    assert line.startswith(f"advertise={advertise}: ")


@pytest.mark.parametrize(
    "advertise",
    ["host", "host:50700", "fd00::2", "[fd00::2]:50700", "10.77.0.1,10.78.0.1:50701,fd00::2"],
)
def test_a_host_alone_or_with_a_port_may_be_advertised(advertise: str) -> None:
    assert load({"advertise": advertise}).advertise == advertise


def test_a_socket_path_that_is_too_long_for_the_system_is_refused() -> None:
    (line,) = mistakes({"socket": "/" + 107 * "x"})
    assert "at most 107 bytes, this one 108" in line


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "gradwire.toml"
    file.write_bytes(b"\xff\xfe\x00")
    assert f"config={file}" in mistakes({"config": str(file)})[0]


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("0", 0),
        ("200000000", 200_000_000),
        ("200mbit", 200_000_000),
        ("2.5Gbit", 2_500_000_000),
    ],
)
def test_a_bandwidth_is_a_number_of_bits_or_has_a_unit(text: str, bits: int) -> None:
    assert load({"bandwidth": text}).bandwidth == bits


@pytest.mark.parametrize("text", ["fast", "-1", "1 GB", ""])
def test_another_bandwidth_is_refused(text: str) -> None:
    (mistake,) = mistakes({"bandwidth": text})
    assert mistake.startswith(f"bandwidth={text}: expected bits per second")


def test_a_key_of_tokens_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    (line,) = mistakes({"token_key": str(tmp_path / "none")})
    assert line.startswith(f"token_key={tmp_path}/none: No such file")
    assert "gradwire tokens init" in line
