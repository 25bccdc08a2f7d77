"""The relay that gives the links of a laboratory their delay: relay.c, compiled and run."""

from __future__ import annotations

import os
import selectors
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from gradwire_ops.lab_plan import LabError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradwire_ops.namespace import Namespace

    End: TypeAlias = tuple[Namespace, str]
    """A device that the relay makes: where, and its name."""
    Link: TypeAlias = tuple[End, End, int]
    """Two ends, and room for so many bytes on their way in each direction."""

COMPILE_SECONDS = 60.0
READY_SECONDS = 10.0


def _compile(folder: Path) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        raise LabError(
            "a laboratory with a delay compiles a small program, and there is no C compiler;"
            " on Debian: apt-get install gcc libc6-dev"
        )
    program = folder / "relay"
    source = resources.files("gradwire_ops").joinpath("relay.c").read_bytes()
    result = subprocess.run(  # noqa: S603 - our own source
        [compiler, "-O2", "-pthread", "-x", "c", "-", "-o", str(program)],
        input=source,
        capture_output=True,
        timeout=COMPILE_SECONDS,
        check=False,
    )
    if result.returncode:
        words = result.stderr.decode(errors="replace").strip()
        raise LabError(
            f"the relay could not be compiled ({compiler}); on Debian: apt-get install gcc"
            f" libc6-dev\n{words}"
        )
    return program


@contextmanager
def relay(hop_seconds: float, links: Sequence[Link]) -> Iterator[None]:
    """Links between namespaces that deliver each frame so much later, until this is left.

    Their devices are there on entering, and gone afterwards. Enter it in a thread that lives
    as long as the links shall: the relay ends with it. Raises LabError where it does not start.
    """
    arguments = [str(os.getpid()), str(round(hop_seconds * 1e6))]
    for here, there, room in links:
        ends = [(space.path, name) for space, name in (here, there)]
        arguments += [str(room), *ends[0], *ends[1]]
    # A program that runs needs its file no longer; so even a kill leaves none behind.
    with tempfile.TemporaryDirectory(prefix="gradwire-lab-") as folder:
        process = subprocess.Popen(  # noqa: S603 - compiled from our own source
            [str(_compile(Path(folder))), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
    with process:
        try:
            _await_ready(process)
            yield
        finally:
            process.kill()


def _await_ready(process: subprocess.Popen[bytes]) -> None:
    if process.stdout is None or process.stderr is None:
        raise ValueError("the relay's output has to be piped")
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(READY_SECONDS):
            raise LabError(f"the relay was not ready within {READY_SECONDS:g} s")
    if process.stdout.readline() != b"ready\n":
        words = process.stderr.read().decode(errors="replace").strip()
        raise LabError(
            f"links with a delay need TAP devices, and they can't be made here: {words};"
            " is there a /dev/net/tun?"
        )
