"""The image and the compose files, with a real engine: `make test-compose`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from engine import BASE, BUILD_BASE, ROOT, Engine, UnavailableError, engine, make_bases
from gradwire_ops.certs_authority import Authority
from gradwire_proto import certificates

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(900)

TWO_NODES = ROOT / "deploy" / "compose-two-nodes.yml"
ONE_NODE = ROOT / "docker-compose.yml"
SECONDS = 90
DOCKERFILE = "deploy/Dockerfile"
STAND_IN = f"""\
FROM {BASE}
COPY prometheus /bin/prometheus
USER 65534
ENTRYPOINT ["/bin/prometheus"]
"""
RESULT = re.compile(r"rank=(\d) world_size=(\d) path=(\w+) digest=(\w+) loss=([\d.]+),([\d.]+)")


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine that has the image."""
    try:
        with engine(tmp_path_factory.mktemp("engine")) as found:
            make_bases(found)
            arguments = [f"BUILD_IMAGE={BUILD_BASE}", f"RUN_IMAGE={BASE}", "TORCH_INDEX="]
            options = [part for each in arguments for part in ("--build-arg", each)]
            found.docker("build", "--file", DOCKERFILE, *options, "--tag", image(), ".")
            yield found
    except UnavailableError as error:
        pytest.skip(str(error))


def image() -> str:
    return str(yaml.safe_load(ONE_NODE.read_text())["services"]["daemon"]["image"])


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For both nodes, as their group may read it."""
    folder = tmp_path_factory.mktemp("certs")
    authority = Authority.create()
    issued = authority.issue("nodes", ("node0", "node1"), 1)
    files = (authority.certificate, issued.certificate, issued.key)
    for name, data in zip(certificates.NAMES, files, strict=True):
        (folder / name).write_bytes(data)
    for path in (folder, *folder.iterdir()):
        os.chown(path, 0, 10001)
        path.chmod(0o750 if path.is_dir() else 0o640)
    # pytest's own folders are for their user alone.
    for parent in folder.parents[:2]:
        parent.chmod(0o711)
    return folder


class TwoNodes:
    """The two nodes' services, up."""

    def __init__(self, containers: Engine, settings: dict[str, str]) -> None:
        self._engine = containers
        self._settings = settings

    def run(self, *arguments: str, **settings: str) -> str:
        return self._engine.compose(
            TWO_NODES, *arguments, settings={**self._settings, **settings}
        )

    def train(self, **settings: str) -> None:
        """Begin a job."""
        self.run("up", "--detach", "--no-build", "trainer0", "trainer1", **settings)

    def results(self) -> list[dict[str, Any]]:
        """What its ranks say in the end."""
        names = [f"gradwire-two-nodes-trainer{node}-1" for node in range(2)]
        codes = self._engine.docker("wait", *names, seconds=SECONDS).split()
        said = self.run("logs", "--no-color", "trainer0", "trainer1")
        assert codes == ["0", "0"], said
        self.run("rm", "--force", "trainer0", "trainer1")
        fields = ("rank", "world_size", "path", "digest", "before", "after")
        found = [dict(zip(fields, row, strict=True)) for row in RESULT.findall(said)]
        assert sorted(each["rank"] for each in found) == ["0", "1", "2", "3"], said
        return found

    def train_slowly(self) -> None:
        """Begin the same job so that it lasts; return when it is under way."""
        self.train(STEPS="120", PAUSE_SECONDS="0.1")
        deadline = time.monotonic() + SECONDS
        while "joined generation" not in self.run(
            "logs", "--no-color", "--since", "3s", "node1"
        ):
            assert time.monotonic() < deadline
        time.sleep(2)

    def address(self, node: int) -> str:
        networks = self.inspect(node)["NetworkSettings"]["Networks"]
        return "".join(each["IPAddress"] for each in networks.values())

    def inspect(self, node: int) -> dict[str, Any]:
        name = f"gradwire-two-nodes-node{node}-1"
        return dict(json.loads(self._engine.docker("inspect", name))[0])


@pytest.fixture(scope="module")
def nodes(containers: Engine, certs: Path) -> Iterator[TwoNodes]:
    two = TwoNodes(containers, {"GRADWIRE_CERTS": str(certs), "GRADWIRE_INSECURE": "0"})
    try:
        two.run("up", "--detach", "--no-build", "--wait", "node0", "node1")
        yield two
    finally:
        two.run("down", "--volumes", "--timeout", "5")


def test_the_image_is_what_it_should_be(containers: Engine) -> None:
    (found,) = json.loads(containers.docker("image", "inspect", image()))
    assert found["Config"]["User"] == "10001:10001"
    assert found["Config"]["Healthcheck"]["Test"][0] == "CMD"
    left = "command -v cc gcc; ls /source /wheels"
    run = "run", "--rm", "--entrypoint", "sh", image(), "-c", left
    assert containers.docker(*run, check=False) == ""
    size = found["Size"] / 1e9
    print(f"image: {size:.2f} GB with Debian's Python under it")  # noqa: T201 - for the README
    assert size < 1.5


@pytest.fixture(scope="module")
def digest(nodes: TwoNodes) -> str:
    """What all ranks of an undisturbed job hold in the end."""
    nodes.train(STEPS="120")
    ranks = nodes.results()
    assert {each["path"] for each in ranks} == {"shared_memory"}
    assert all(float(each["after"]) < float(each["before"]) / 2 for each in ranks)
    (one,) = {each["digest"] for each in ranks}
    return str(one)


def test_a_job_survives_a_daemon_that_is_killed_with_the_same_bits(
    nodes: TwoNodes, digest: str
) -> None:
    nodes.train_slowly()
    before = nodes.inspect(1)
    os.kill(before["State"]["Pid"], signal.SIGKILL)
    assert {each["digest"] for each in nodes.results()} == {digest}
    assert nodes.inspect(1)["RestartCount"] == before["RestartCount"] + 1


def test_a_daemon_that_comes_back_with_another_address_is_found_by_its_name(
    nodes: TwoNodes, containers: Engine, digest: str
) -> None:
    nodes.train_slowly()
    before = nodes.address(1)
    nodes.run("kill", "--signal", "KILL", "node1")
    nodes.run("rm", "--force", "node1")
    # Whoever comes next on this network gets the address that is free now.
    others = [f"gradwire-test-other{number}" for number in range(3)]
    run = "run", "--detach", "--rm", "--network", "gradwire-two-nodes_between"
    try:
        for other in others:
            containers.docker(*run, "--name", other, "--entrypoint", "sleep", image(), "300")
        nodes.run("up", "--detach", "--no-build", "node1")
        assert nodes.address(1) != before
        assert {each["digest"] for each in nodes.results()} == {digest}
    finally:
        containers.docker("rm", "--force", *others, check=False)


def test_prometheus_has_both_nodes_and_knows_their_certificates(
    nodes: TwoNodes, containers: Engine, tmp_path: Path
) -> None:
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("Debian's prometheus, the stand-in for the image, is not here")
    # A stand-in: no registry is needed.
    shutil.copy(binary, tmp_path / "prometheus")
    (tmp_path / "Dockerfile").write_text(STAND_IN)
    wanted = yaml.safe_load(ONE_NODE.read_text())["services"]["prometheus"]["image"]
    containers.docker("build", "--quiet", "--tag", wanted, str(tmp_path))
    port = "29090"
    nodes.run("up", "--detach", "--no-build", "prometheus", GRADWIRE_PROMETHEUS_PORT=port)
    query = "gradwire_certificate_expiry_timestamp_seconds"
    deadline = time.monotonic() + SECONDS
    while True:
        assert time.monotonic() < deadline
        time.sleep(0.5)
        try:
            address = f"http://127.0.0.1:{port}/api/v1/query?query={query}"
            with urllib.request.urlopen(address, timeout=5) as answer:
                rows = json.load(answer)["data"]["result"]
        except OSError:
            continue
        found = {row["metric"]["instance"]: float(row["value"][1]) for row in rows}
        if set(found) == {"node0:9470", "node1:9470"}:
            break
    assert min(found.values()) > time.time()


@pytest.mark.case("R22")
def test_a_container_stops_in_time_as_process_1(nodes: TwoNodes) -> None:
    begun = time.monotonic()
    nodes.run("stop", "node0")
    assert time.monotonic() - begun < 10
    assert nodes.inspect(0)["State"]["ExitCode"] == 0
    nodes.run("up", "--detach", "--no-build", "--wait", "node0")


@pytest.mark.case("E11")
def test_one_node_needs_nothing_edited(containers: Engine, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    settings = {
        "GRADWIRE_RUN": str(tmp_path / "run"),
        "GRADWIRE_SHM": "/dev/shm/gradwire-test",  # noqa: S108 - a tmpfs
        "GRADWIRE_METRICS_PORT": "29470",
        "COMPOSE_PROJECT_NAME": "gradwire-test",
    }
    try:
        begin = "up", "--detach", "--no-build", "--wait", "daemon"
        containers.compose(ONE_NODE, *begin, settings=settings)
        said = containers.compose(ONE_NODE, "run", "--rm", "trainer", settings=settings)
        ranks = RESULT.findall(said)
        assert len(ranks) == 2
        assert {rank[2] for rank in ranks} == {"shared_memory"}
        with urllib.request.urlopen("http://127.0.0.1:29470/status.json", timeout=5) as page:
            assert json.load(page)["socket"] == "/run/gradwire/gradwire.sock"
    finally:
        containers.compose(ONE_NODE, "down", "--volumes", "--timeout", "5", settings=settings)
        shutil.rmtree(settings["GRADWIRE_SHM"], ignore_errors=True)
