"""A container engine for the tests: the machine's, or one of our own where none answers.

Of our own: dockerd with its data in a folder that goes in the end. What it changes in the
kernel is put back.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gradwire-compose"
START_SECONDS = 60
FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
BASE, BUILD_BASE = "gradwire-test/base", "gradwire-test/build"
RELEASE = "bookworm"


class UnavailableError(Exception):
    """There can be no engine here; the text says why."""


class Engine:
    """Docker and Compose against one engine."""

    def __init__(self, host: str | None) -> None:
        """`host`: as in DOCKER_HOST; None: the usual one."""
        self.environment = {**os.environ, "DOCKER_BUILDKIT": "1"}
        if host is not None:
            self.environment["DOCKER_HOST"] = host
        # Debian's own before others: its engine and its client are of one release.
        self._docker = shutil.which("docker", path=f"/usr/bin:{os.environ['PATH']}") or "docker"

    @property
    def answers(self) -> bool:
        """Whether there is an engine at all."""
        return bool(self.docker("info", "--format", "{{.ID}}", check=False).strip())

    def docker(self, *arguments: str, seconds: float = 600, check: bool = True) -> str:
        """What `docker` prints."""
        return self._run([self._docker, *arguments], seconds=seconds, check=check)

    def compose(self, file: Path, *arguments: str, settings: Mapping[str, str]) -> str:
        """What `docker compose` prints, with these variables set."""
        command = ["docker-compose", "--file", str(file), *arguments]
        return self._run(command, settings=settings)

    def load(self, image: str, archive: str, *changes: str) -> None:
        """Make an image of what a shell command writes."""
        command = [self._docker, "import"]
        for change in changes:
            command += ["--change", change]
        self._run(["sh", "-c", f"{archive} | {shlex.join([*command, '-', image])}"])

    def _run(
        self,
        command: list[str],
        *,
        seconds: float = 300,
        check: bool = True,
        settings: Mapping[str, str] | None = None,
    ) -> str:
        done = subprocess.run(
            command,
            env={**self.environment, **(settings or {})},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if check and done.returncode:
            said = f"{done.stdout[-4000:]}{done.stderr[-4000:]}"
            raise AssertionError(f"{shlex.join(command)}: {said}")
        return done.stdout


@contextmanager
def engine(folder: Path) -> Iterator[Engine]:
    """One that answers; one of our own has its data in this folder. Raises UnavailableError."""
    if shutil.which("docker") and (usual := Engine(None)).answers:
        yield usual
        return
    if os.getuid() != 0 or shutil.which("dockerd") is None:
        raise UnavailableError("no engine answers, and to start one takes root and dockerd")
    with _kept_kernel(), _own(folder) as own:
        yield own


@contextmanager
def _own(folder: Path) -> Iterator[Engine]:
    socket = f"unix://{folder}/docker.sock"
    command = ["dockerd", "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"]
    command += ["--pidfile", f"{folder}/pid", "--host", socket, "--storage-driver", "overlay2"]
    command += ["--bip", "10.88.0.1/24"]
    command += ["--default-address-pool", "base=10.89.0.0/16,size=24"]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT) as daemon,
    ):
        try:
            own = Engine(socket)
            deadline = time.monotonic() + START_SECONDS
            while not own.answers:
                if daemon.poll() is not None or time.monotonic() > deadline:
                    raise UnavailableError((folder / "log").read_text()[-2000:])
                time.sleep(0.2)
            yield own
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(60)


@contextmanager
def _kept_kernel() -> Iterator[None]:
    """Puts back what dockerd leaves behind: forwarding, rules, bridges."""
    forwarding, rules, links = FORWARD.read_text(), _output("iptables-save"), set(_links())
    try:
        yield
    finally:
        FORWARD.write_text(forwarding)
        subprocess.run(["iptables-restore"], input=rules, text=True, check=False)
        for link in set(_links()) - links:
            _output("ip", "link", "delete", link)


def _links() -> list[str]:
    return [path.name for path in Path("/sys/class/net").iterdir()]


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def make_bases(one: Engine) -> None:
    """Stand-ins for Python's image, from Debian: no registry is needed. Raises
    UnavailableError.
    """
    rootfs, wheels = CACHE / "rootfs.tar", CACHE / "wheels"
    if not rootfs.exists():
        _bootstrap(rootfs)
    path = "ENV PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    one.load(BASE, f"cat {shlex.quote(str(rootfs))}", path)
    _download_torch(wheels)
    (CACHE / "Dockerfile").write_text(
        f"FROM {BASE}\nCOPY wheels /wheels\nENV PIP_FIND_LINKS=/wheels\n"
    )
    (CACHE / ".dockerignore").write_text("rootfs*\n")
    one.docker("build", "--quiet", "--tag", BUILD_BASE, str(CACHE))


def _bootstrap(target: Path) -> None:
    if shutil.which("debootstrap") is None:
        raise UnavailableError("debootstrap is not on this machine")
    folder = CACHE / "rootfs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    packages = "ca-certificates,python3,python3-venv,python3-pip"
    command = ["debootstrap", "--variant=minbase", f"--include={packages}"]
    done = subprocess.run(
        [*command, RELEASE, str(folder)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        raise UnavailableError(f"debootstrap: {done.stdout[-500:]}{done.stderr[-500:]}")
    # The build trusts whom this machine trusts.
    trusted = "etc/ssl/certs/ca-certificates.crt"
    shutil.copy(Path("/") / trusted, folder / trusted)
    for path in folder.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        path.unlink()
    (folder / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    part = target.with_suffix(".part")
    subprocess.run(["tar", "-C", str(folder), "-cf", str(part), "."], check=True)
    part.rename(target)
    shutil.rmtree(folder)


def _download_torch(wheels: Path) -> None:
    """As this machine's pip finds it: the build need not know where that is."""
    shutil.rmtree(wheels, ignore_errors=True)
    wheels.mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--constraint", str(ROOT / "constraints.txt"), "--dest", str(wheels), "torch"]
    subprocess.run(command, check=True, timeout=600)
