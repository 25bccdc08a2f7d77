"""Threads of ours, for which the end of the process waits.

One that is in torch's native code while the interpreter ends would take the process down:
"terminate called without an active exception".
"""

from __future__ import annotations

import atexit
import os
import threading
import time

EXIT_SECONDS = 2.0
"""How long the end of the process waits for all of them together."""

_running: set[OwnThread] = set()


class OwnThread(threading.Thread):
    """Does not keep the process from ending, but is let finish what it is at."""

    def start(self) -> None:
        """See threading.Thread. Raises RuntimeError where the interpreter makes no more."""
        self.daemon = True
        _running.add(self)
        try:
            super().start()
        except RuntimeError:
            _running.discard(self)
            raise

    def run(self) -> None:
        """See threading.Thread."""
        try:
            super().run()
        finally:
            _running.discard(self)


# The earlier registered, the later called: sessions, which end their threads, come before it.
@atexit.register
def _join_all() -> None:
    deadline = time.monotonic() + EXIT_SECONDS
    for thread in tuple(_running):
        thread.join(max(0.0, deadline - time.monotonic()))


os.register_at_fork(after_in_child=_running.clear)
