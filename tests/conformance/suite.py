"""The distributed tests that torch's wheel brings, on one backend; run.py runs this file.

BACKEND names the backend, GRADWIRE_DAEMON the daemon. The tests ask whether BACKEND is "gloo"
when their module is imported, and again while they run. So it is imported as gloo, and then
told a name that is equal to gloo, too. What runs is BACKEND.

Ranks are forked: that spares each of them importing torch, and gRPC.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch.multiprocessing

import gradwire._process_group  # noqa: F401 - once, for all ranks

BACKEND = os.environ.get("BACKEND", "grpc")

_folder = Path(os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp(prefix="conformance-")))
for _name in ("barrier", "test_dir", "init_dir"):
    (_folder / _name).mkdir(exist_ok=True)
os.environ.setdefault("WORLD_SIZE", "3")
os.environ.setdefault("INIT_METHOD", f"file://{_folder}/init_dir/meeting")
os.environ["BACKEND"] = "gloo"

# Everything above must stand before it is imported.
from torch.testing._internal.distributed import distributed_test as of_torch  # noqa: E402


class Name(str):
    """A backend's name that passes for gloo's."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other


os.environ["BACKEND"] = BACKEND
of_torch.BACKEND = Name(BACKEND)


class TestBackend(
    of_torch.TestDistBackend,
    of_torch.DistributedTest._DistTestBase,  # noqa: SLF001 - meant for this
):
    """torch's tests, each with three ranks of its own."""

    def setUp(self) -> None:
        super().setUp()  # type: ignore[no-untyped-call]  # torch's tests have no types
        self._start_processes(torch.multiprocessing.get_context("fork").Process)
