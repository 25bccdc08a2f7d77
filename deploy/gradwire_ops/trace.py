"""`gradwire trace`: what all daemons of a job do for a while, in one file."""

from __future__ import annotations

import json
import os
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console

from gradwire_ops import query
from gradwire_ops.status import places
from gradwire_proto.text import printable
from gradwire_proto.trace_json import to_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    import grpc

CANCEL_SECONDS = 0.1

LOOK_SECONDS = 1.0
"""Between two looks at who else belongs to the jobs: a job may begin while we record."""

LEAST_SECONDS = 0.1
"""Of a recording that begins late."""

MOST_DAEMONS = 256
"""That are recorded; of more, the others are named as missing."""


def run(daemon: str | None, seconds: float, out: Path) -> int:
    """Write it. 1 where no daemon answers, 2 where the file can't be written."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        with _sheet(out) as sheet:
            return _trace(places(daemon), seconds, sheet, console)
    except OSError as error:
        console.print(f"can't write {out}: {error.strerror}", markup=False)
        return 2


class _Sheet:
    """Where the trace goes, in the end."""

    def __init__(self, file: IO[str], *, console: Console, name: str) -> None:
        self._file = file
        self._console = console
        self._name = name
        self.written = False

    def write(self, document: dict[str, Any]) -> None:
        json.dump(document, self._file)
        self._file.flush()
        self.written = True
        spans = sum(each["spans"] for each in document["metadata"]["daemons"])
        daemons = len(document["metadata"]["daemons"])
        self._console.print(
            f"{spans} spans of {daemons} daemons: {self._name}; open it at ui.perfetto.dev",
            markup=False,
        )


@contextmanager
def _sheet(out: Path) -> Iterator[_Sheet]:
    """A file that can be written, which is known before anything is recorded; what was there
    stays until the trace is whole. Raises OSError.
    """
    aside = Console(stderr=True, highlight=False, soft_wrap=True)
    if _is_stdout(out):
        # Also where that is a file: what the shell opened stays, and has nothing else.
        with os.fdopen(os.dup(1), "w") as file:
            yield _Sheet(file, console=aside, name=str(out))
        return
    if out.exists() and not out.is_file():
        # A pipe or a device: nothing else may be said there.
        with out.open("w") as file:
            yield _Sheet(file, console=aside, name=str(out))
        return
    # A link goes on to lead where it did.
    target = out.resolve()
    with tempfile.NamedTemporaryFile(
        "w", dir=target.parent, prefix=f".{target.name}.", delete=False
    ) as file:
        part = Path(file.name)
        try:
            sheet = _Sheet(
                file, console=Console(highlight=False, soft_wrap=True), name=str(out)
            )
            yield sheet
            if sheet.written:
                part.chmod(0o644)
                part.replace(target)
        finally:
            part.unlink(missing_ok=True)


def _is_stdout(out: Path) -> bool:
    try:
        return os.path.samestat(out.stat(), os.fstat(1))
    except OSError:
        return False


def _trace(addresses: list[str], seconds: float, sheet: _Sheet, console: Console) -> int:
    recordings, missing = _record_first(addresses, seconds, console)
    missing += [each.lost for each in recordings if each.lost]
    document = to_json(
        [each.parts for each in recordings], [printable(each) for each in missing]
    )
    for text in document["metadata"]["missing"]:
        console.print(f"warning: {text}", markup=False)
    if not recordings:
        return 1
    for each in document["metadata"]["daemons"]:
        if each["dropped"]:
            lost = f"{each['dropped']} records of {printable(each['host'])} were lost: it did"
            console.print(f"warning: {lost} too much to be written down as fast", markup=False)
    sheet.write(document)
    return 0


def _record_first(
    addresses: list[str], seconds: float, console: Console
) -> tuple[list[query.Recording], list[str]]:
    """From the first of these at which a daemon answers, and all that belong to its jobs; and
    what is missing, in words.
    """
    missing: list[str] = []
    for address in addresses:
        try:
            found = {address: "", **_others(address, {})}
        except query.UnreachableError as error:
            missing.append(str(error))
            continue
        recorded = _Recorded(seconds)
        recorded.gather(address, found, console)
        return recorded.collect(), recorded.missing
    return [], missing


class _Recorded:
    """Of several daemons for one time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self._calls: list[grpc.Call] = []
        self._asked: dict[str, Future[query.Recording]] = {}
        self._ids: dict[str, str] = {}
        """By address: who is there, where that is known."""
        self.missing: list[str] = []

    def gather(self, first: str, found: dict[str, str], console: Console) -> None:
        """Ask all of them, and those who come to be of the first one's jobs meanwhile. Ends
        with the time, or sooner with Ctrl-C.
        """
        with ThreadPoolExecutor(MOST_DAEMONS) as pool:
            self._ask(pool, found)
            try:
                console.print(f"recording for {self._seconds:g} s; Ctrl-C ends it sooner")
                while wait(self._asked.values(), timeout=LOOK_SECONDS).not_done:
                    self._look(pool, first)
            except KeyboardInterrupt:
                # What has come by now is written. A call may be about to be made.
                while wait(self._asked.values(), timeout=CANCEL_SECONDS).not_done:
                    for call in self._calls:
                        call.cancel()

    def _look(self, pool: ThreadPoolExecutor, first: str) -> None:
        if time.monotonic() > self._end - LOOK_SECONDS:
            return
        try:
            self._ask(pool, _others(first, self._asked))
        except query.UnreachableError:
            # Its own recording says so.
            return

    def _ask(self, pool: ThreadPoolExecutor, found: dict[str, str]) -> None:
        # In this order: the first one's clock is that of the time line.
        for address, whose in found.items():
            if address in self._ids:
                continue
            self._ids[address] = whose
            if len(self._asked) == MOST_DAEMONS:
                self.missing.append(f"more than {MOST_DAEMONS} daemons: not {address}")
                continue
            left = max(LEAST_SECONDS, self._end - time.monotonic())
            self._asked[address] = pool.submit(query.trace, address, left, self._calls)

    def collect(self) -> list[query.Recording]:
        """What each daemon has told, once; those that told nothing are missing then."""
        found: dict[str, query.Recording] = {}
        for asked in self._asked.values():
            try:
                recording = asked.result()
            except query.UnreachableError as error:
                self.missing.append(str(error))
                continue
            found.setdefault(recording.node_id, recording)
        unasked = {node for each in found.values() for node in each.nodes}
        unasked -= {*found, *self._ids.values()}
        self.missing += [
            f"the daemon {each}: its job began too late, or was too short, to ask it, too"
            for each in sorted(unasked)
        ]
        return list(found.values())


def _others(address: str, known: dict[str, Any]) -> dict[str, str]:
    """The other daemons of this one's jobs whose addresses are not known yet, and all of their
    workers; with their ids, where these are known.
    """
    status = query.status(address)
    found = dict.fromkeys(_workers(address), "")
    for job in status.jobs:
        for node in job.nodes:
            if node.id != status.node_id and node.address not in {*known, *found}:
                found |= dict.fromkeys(_workers(node.address, quiet=True), "")
                found[node.address] = node.id
    return {each: whose for each, whose in found.items() if each not in known}


def _workers(address: str, *, quiet: bool = False) -> list[str]:
    """Further processes of the daemon there; with `quiet`, none if it is gone."""
    try:
        described = query.describe(address)
    except query.UnreachableError:
        if quiet:
            return []
        raise
    return [worker.addresses[0] for worker in described.workers if worker.addresses]
