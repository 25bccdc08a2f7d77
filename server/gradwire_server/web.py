"""What the daemon answers over HTTP, path by path: metrics, its status, and a page of it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias

from gradwire_proto.status_json import to_dict
from gradwire_server import page

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from gradwire_proto.v1 import aggregator_pb2 as pb

Ask: TypeAlias = Callable[[], "pb.StatusResponse"]
"""What the daemon is doing; may be called in any thread. Raises TimeoutError."""

ANSWER_SECONDS = 2.0
"""For so long a visitor waits for the event loop."""

log = logging.getLogger(__name__)

METHODS = ("GET", "HEAD")

_ALWAYS = [
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
]


@dataclass(frozen=True, slots=True)
class _Answer:
    status: str
    headers: list[tuple[str, str]]
    body: bytes


def asking(
    loop: asyncio.AbstractEventLoop,
    status: Callable[[], Coroutine[Any, Any, pb.StatusResponse]],
) -> Ask:
    """What a coroutine of this loop answers, for the threads that serve visitors."""

    def ask() -> pb.StatusResponse:
        if loop.is_closed():
            raise TimeoutError("the daemon has stopped")
        future = asyncio.run_coroutine_threadsafe(status(), loop)
        try:
            return future.result(ANSWER_SECONDS)
        except TimeoutError:
            future.cancel()
            raise

    return ask


def _anybody(_: str | None) -> bool:
    return True


def application(
    metrics: WSGIApplication,
    ask: Ask | None = None,
    welcome: Callable[[str | None], bool] = _anybody,
) -> WSGIApplication:
    """`/metrics`, and with somebody to ask `/status.json` and `/`, the page that shows it.

    `welcome` is asked whether the Host header, if any, is a name of ours.
    """
    answers: dict[str, Callable[[WSGIEnvironment], _Answer]] = {
        "/metrics": lambda environ: _listen(metrics, environ)
    }
    if ask is not None:
        answers["/status.json"] = lambda _: _status(ask)
        answers["/"] = lambda _: _page()

    def serve(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        answer = answers.get(environ["PATH_INFO"] or "/")
        if not welcome(environ.get("HTTP_HOST")):
            said = _words(HTTPStatus.MISDIRECTED_REQUEST)
        elif method not in METHODS:
            said = _words(HTTPStatus.METHOD_NOT_ALLOWED, ("Allow", ", ".join(METHODS)))
        elif answer is None:
            said = _words(HTTPStatus.NOT_FOUND)
        else:
            said = answer(environ)
        length = ("Content-Length", str(len(said.body)))
        start_response(said.status, [*said.headers, length, *_ALWAYS])
        return [] if method == "HEAD" else [said.body]

    return serve


def _listen(metrics: WSGIApplication, environ: WSGIEnvironment) -> _Answer:
    """What Prometheus' own application says, which knows what kinds of text there are."""
    heard: list[tuple[str, list[tuple[str, str]]]] = []

    def hear(status: str, headers: list[tuple[str, str]], *_: object) -> Callable[..., Any]:
        heard.append((status, headers))
        return lambda _: None

    try:
        body = b"".join(metrics({**environ, "REQUEST_METHOD": "GET"}, hear))
    except (TypeError, ValueError) as error:
        # Of what visitors send, the library reads some more than it can.
        log.info("%s could not be served: %r", environ["PATH_INFO"], error)
        return _words(HTTPStatus.BAD_REQUEST)
    status, headers = heard[-1]
    return _Answer(status, headers, body)


def _status(ask: Ask) -> _Answer:
    try:
        answer = ask()
    except (TimeoutError, CancelledError):
        return _words(HTTPStatus.SERVICE_UNAVAILABLE, ("Retry-After", "1"))
    headers = [("Content-Type", "application/json"), ("Cache-Control", "no-store")]
    return _Answer("200 OK", headers, json.dumps(to_dict(answer)).encode())


def _page() -> _Answer:
    loaded = page.load()
    headers = [
        ("Content-Type", "text/html; charset=utf-8"),
        ("Cache-Control", "no-cache"),
        ("Content-Security-Policy", loaded.policy),
    ]
    return _Answer("200 OK", headers, loaded.body)


def _words(status: HTTPStatus, *headers: tuple[str, str]) -> _Answer:
    line = f"{status.value} {status.phrase}"
    kind = ("Content-Type", "text/plain; charset=utf-8")
    return _Answer(line, [kind, *headers], f"{line}\n".encode())
