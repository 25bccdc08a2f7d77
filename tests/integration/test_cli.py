from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from importlib import metadata
from typing import TYPE_CHECKING

import pytest

from gradwire_ops.cluster import cluster

if TYPE_CHECKING:
    from pathlib import Path

OURS = {name: value for name, value in os.environ.items() if not name.startswith("GRADWIRE_")}


def gradwire(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gradwire_ops", *arguments],
        env={**OURS, **environment, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_needs_none_of_the_heavy_libraries() -> None:
    heavy = "{'torch', 'grpc', 'sklearn', 'numpy'} & set(sys.modules)"
    code = f"import sys, gradwire_ops.cli; sys.exit(str({heavy}) if {heavy} else 0)"
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert result.returncode == 0, result.stderr


def test_help_names_the_commands() -> None:
    result = gradwire("--help")
    assert result.returncode == 0
    for command in ("serve", "demo", "bench", "status"):
        assert command in result.stdout


def test_the_version_is_the_distributions() -> None:
    assert gradwire("--version").stdout == f"gradwire {metadata.version('gradwire')}\n"


def test_without_a_command_the_help_is_shown_as_an_error_of_usage() -> None:
    result = gradwire()
    assert result.returncode == 2
    assert "serve" in result.stdout + result.stderr


@pytest.mark.parametrize(
    "arguments", [["sreve"], ["serve", "--lisen", "x"], ["demo", "--epochs", "0"]]
)
def test_what_the_command_line_does_not_know_is_an_error_of_usage(arguments: list[str]) -> None:
    assert gradwire(*arguments).returncode == 2


def test_serve_lists_every_mistake_of_flags_environment_and_file(tmp_path: Path) -> None:
    file = tmp_path / "gradwire.toml"
    file.write_text("kernel_threads = -3\n")
    result = gradwire(
        "serve",
        *("--listen", "::1:50700", "--schedule", "star", "--config", str(file)),
        GRADWIRE_SLOTS="none",
    )
    assert result.returncode == 2
    for name in ("listen", "schedule", "slots", "kernel_threads"):
        assert name in result.stderr.replace("-", "_")
    assert "[::1]:50700" in result.stderr, "the right form"
    assert "Traceback" not in result.stderr


def test_bench_lists_every_mistake() -> None:
    result = gradwire("bench", "--nodes", "none", "--repeat", "0", "--sizes", "1XB")
    assert result.returncode == 2
    for flag in ("--nodes", "--repeat", "--sizes"):
        assert flag in result.stderr


def test_status_of_nobody_names_the_address_and_the_remedy(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/nobody.sock"
    result = gradwire("status", GRADWIRE_DAEMON=address)
    assert result.returncode == 1
    assert address in result.stderr
    assert "gradwire serve" in result.stderr


@pytest.mark.parametrize("address", ["::1:50700", "localhost", "127.0.0.1:http"])
def test_status_shows_the_form_of_an_address(address: str) -> None:
    result = gradwire("status", "--daemon", address)
    assert result.returncode == 2
    assert "expected HOST:PORT" in result.stderr


def test_status_shows_a_daemon_whatever_proxy_there_is() -> None:
    with cluster(1) as nodes:
        proxies = {"http_proxy": "http://127.0.0.1:9", "grpc_proxy": "http://127.0.0.1:9"}
        table = gradwire("status", "--daemon", nodes.addresses[0])
        answer = gradwire("status", "--json", GRADWIRE_DAEMON=nodes.addresses[0])
        status = json.loads(answer.stdout)
        by_port = gradwire("status", "--json", "--daemon", status["address"], **proxies)
    assert (table.returncode, answer.returncode, by_port.returncode) == (0, 0, 0)
    assert status["node_id"] in table.stdout
    assert status["jobs"] == []
    assert json.loads(by_port.stdout)["node_id"] == status["node_id"]


def test_of_two_daemons_on_one_port_the_second_fails_and_says_so(tmp_path: Path) -> None:
    with cluster(1) as nodes:
        taken = json.loads(gradwire("status", "--json", "--daemon", nodes.addresses[0]).stdout)
        second = gradwire(
            *("serve", "--listen", taken["address"], "--metrics-listen", ""),
            *("--socket", str(tmp_path / "second.sock")),
        )
    assert second.returncode == 1
    assert taken["address"] in second.stderr
    assert "Traceback" not in second.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_says_when_it_is_ready_and_stops_in_good_order(
    tmp_path: Path, number: signal.Signals
) -> None:
    path = tmp_path / "gradwire.sock"
    command = [sys.executable, "-m", "gradwire_ops", "serve", "--listen", "127.0.0.1:0"]
    command += ["--metrics-listen", "", "--socket", str(path)]
    with subprocess.Popen(command, env=OURS, stderr=subprocess.PIPE, text=True) as daemon:
        assert daemon.stderr is not None
        ready = next(line for line in daemon.stderr if "ready:" in line)
        port = ready.split("127.0.0.1:")[1].split(",")[0]
        with socket.create_connection(("127.0.0.1", int(port)), timeout=5):
            daemon.send_signal(number)
        assert daemon.wait(10) == 0
    assert str(path) in ready
    assert not path.exists()
