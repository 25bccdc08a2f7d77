"""Runs a module as a program that ends when its parent does, even if the parent is killed.

Used as `python -m gradwire_ops.leash PARENT_PID MODULE [ARGUMENT ...]`. The kernel's
parent-death signal has to be asked for by the child itself: doing it between fork and exec
(`preexec_fn`) may deadlock where the parent has threads, and gRPC gives it some.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent, then become the module."""
    parent, module = int(sys.argv[1]), sys.argv[2]
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        # The parent died before the kernel knew whom to tell.
        sys.exit(1)
    sys.argv = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
