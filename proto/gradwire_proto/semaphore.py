"""Process-shared semaphores in memory that several processes map.

POSIX, sem_init(3) with pshared: a post that nobody waits for costs no system call, and a wait
ends in the kernel as soon as somebody posts. The C library's own, since Python has none that
lives in given memory. Linux with glibc: 32 bytes each.
"""

from __future__ import annotations

import ctypes

BYTES = 32

_libc = ctypes.CDLL(None, use_errno=True)
_post, _try = _libc.sem_post, _libc.sem_trywait

MONOTONIC: bool = hasattr(_libc, "sem_clockwait")
"""Times are the monotonic clock's; before glibc 2.30 the system's, which may be set back."""

_CLOCK_MONOTONIC = 1


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class Semaphore:
    """One semaphore; all methods may be called in any thread of any process that maps it."""

    def __init__(self, memory: ctypes.Array[ctypes.c_char], offset: int) -> None:
        """The semaphore at an offset of the memory, which this object keeps alive."""
        self._memory = memory
        self._address = ctypes.c_void_p(ctypes.addressof(memory) + offset)

    def initialise(self) -> None:
        """Once, by whoever made the memory, before anybody else uses it."""
        if _libc.sem_init(self._address, 1, 0):
            raise OSError(ctypes.get_errno(), "sem_init")

    def post(self) -> None:
        """Wake whoever waits, or spare the next one its wait."""
        _post(self._address)

    def wait(self, until: float) -> None:
        """Return after a post, a signal, or at this time of the clock, in seconds.

        All posts so far are used up. The caller looks for itself at what has changed: a post
        says only that something may have.
        """
        if _try(self._address):
            whole = int(until)
            limit = _Timespec(whole, int((until - whole) * 1e9))
            if MONOTONIC:
                _libc.sem_clockwait(self._address, _CLOCK_MONOTONIC, ctypes.byref(limit))
            else:
                _libc.sem_timedwait(self._address, ctypes.byref(limit))
        while not _try(self._address):
            pass
