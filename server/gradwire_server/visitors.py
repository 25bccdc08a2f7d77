"""Serves visitors over HTTP: so many at once, each for so long, each in a thread of its own.

The standard library's server has no bounds; what asks each visitor for a byte in time still
waits for ever for one that sends a byte now and then.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from wsgiref.types import WSGIApplication

MOST_VISITORS = 32
"""At once. Of more, whoever has been at its request for longest goes."""

VISIT_SECONDS = 10.0
"""A visit takes so long at most, with all of its request and all of the answer."""

LEAVE_SECONDS = 0.5
"""Who was sent away has a thread no longer than this, or there is no room for who comes."""


@contextlib.contextmanager
def receiving(host: str, port: int, application: WSGIApplication) -> Iterator[int]:
    """Serve until the block ends; gives the port. Raises OSError where it can't listen."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    server = _Server(family, (str(address[0]), port))
    server.set_app(application)
    thread = threading.Thread(target=server.serve_forever, name="gradwire-page", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass(slots=True)
class _Guest:
    deadline: float
    asking: bool = True
    leaving: bool = False


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, family: socket.AddressFamily, address: tuple[str, int]) -> None:
        self.address_family = family
        self._guests: dict[Any, _Guest] = {}
        self._changed = threading.Condition()
        super().__init__(address, _Visit)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - theirs
        """Give the visitor a thread; if there is none, and nobody goes, it has to."""
        with self._changed:
            if not self._has_room():
                self._send_away_one()
                self._changed.wait_for(self._has_room, LEAVE_SECONDS)
            if self._has_room():
                self._guests[request] = _Guest(time.monotonic() + VISIT_SECONDS)
        if request in self._guests:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def service_actions(self) -> None:
        """Twice a second, and after each visitor: send away whoever takes too long."""
        super().service_actions()
        now = time.monotonic()
        with self._changed:
            for request, guest in self._guests.items():
                if now > guest.deadline:
                    self._send_away(request, guest)

    def heard(self, request: Any) -> None:  # noqa: ANN401 - theirs
        """All of what the visitor asks for is known."""
        with self._changed:
            self._guests[request].asking = False

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - theirs
        """The visit is over, in whatever way."""
        with self._changed:
            self._guests.pop(request, None)
            self._changed.notify()
        super().shutdown_request(request)

    def _has_room(self) -> bool:
        return len(self._guests) < MOST_VISITORS

    def _send_away_one(self) -> None:
        """Rather one that is still asking than one that has its answer nearly."""
        staying = [(each, guest) for each, guest in self._guests.items() if not guest.leaving]
        if staying:
            self._send_away(*min(staying, key=lambda one: (not one[1].asking, one[1].deadline)))

    def _send_away(self, request: Any, guest: _Guest) -> None:  # noqa: ANN401 - theirs
        """Its thread, which reads or writes, hears the end of the connection."""
        guest.leaving = True
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


class _Visit(WSGIRequestHandler):
    """One connection. What goes wrong with it is no news."""

    server: _Server

    def handle(self) -> None:
        """Answer, unless the visitor goes away."""
        with contextlib.suppress(OSError):
            super().handle()

    def get_environ(self) -> dict[str, Any]:
        """See WSGIRequestHandler: called once the request is read."""
        self.server.heard(self.request)
        return super().get_environ()

    def finish(self) -> None:
        """Say what is left to say, to whoever is still there."""
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing: Prometheus comes every few seconds."""
