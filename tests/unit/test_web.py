from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest
from prometheus_client import CollectorRegistry, Counter, make_wsgi_app

from gradwire_proto.stages import MEANINGS
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_server import page, web

if TYPE_CHECKING:
    from gradwire_server.web import Ask

Answer = tuple[str, dict[str, str], bytes]


def nobody() -> pb.StatusResponse:
    raise TimeoutError


def somebody() -> pb.StatusResponse:
    return pb.StatusResponse(node_id="n", jobs=[pb.JobStatus(generation="g", rounds_done=7)])


def visit(path: str, method: str = "GET", ask: Ask | None = somebody, **more: str) -> Answer:
    """Status, headers and body; the standard's own checks hold for all of it."""
    registry = CollectorRegistry()
    Counter("sheep_total", "Counted.", registry=registry).inc()
    said: list[tuple[str, dict[str, str]]] = []

    def start(status: str, headers: list[tuple[str, str]], *_: object) -> Any:  # noqa: ANN401
        said.append((status, dict(headers)))
        return lambda _: None

    environ: dict[str, Any] = {"REQUEST_METHOD": method, "PATH_INFO": path, **more}
    environ |= {"QUERY_STRING": "", "SCRIPT_NAME": ""}
    setup_testing_defaults(environ)
    body = validator(web.application(make_wsgi_app(registry), ask))(environ, start)
    try:
        content = b"".join(body)
    finally:
        body.close()  # type: ignore[attr-defined]  # the validator's has it
    ((status, headers),) = said
    return status, headers, content


def test_the_status_is_what_the_daemon_answers() -> None:
    status, headers, body = visit("/status.json")
    assert (status, headers["Content-Type"]) == ("200 OK", "application/json")
    assert headers["Cache-Control"] == "no-store"
    answer = json.loads(body)
    assert answer["node_id"] == "n"
    assert answer["jobs"][0]["rounds_done"] == 7


def test_a_daemon_that_does_not_answer_is_unavailable() -> None:
    status, _, body = visit("/status.json", ask=nobody)
    assert status == "503 Service Unavailable"
    assert json.dumps("node_id") not in body.decode()


@pytest.mark.parametrize(
    ("accept", "kind"),
    [("*/*", "text/plain"), ("application/openmetrics-text", "application/openmetrics-text")],
)
def test_metrics_come_in_the_kind_of_text_that_is_asked_for(accept: str, kind: str) -> None:
    status, headers, body = visit("/metrics", HTTP_ACCEPT=accept)
    assert (status, headers["Content-Type"].split(";")[0]) == ("200 OK", kind)
    assert b"sheep_total 1.0" in body
    assert body.endswith(b"# EOF\n") == (accept != "*/*")


@pytest.mark.parametrize("path", ["/metrics/", "/favicon.ico", "/../etc/passwd", "/page.js"])
def test_there_are_no_other_paths(path: str) -> None:
    assert visit(path)[0] == "404 Not Found"


def test_without_somebody_to_ask_there_are_metrics_alone() -> None:
    assert visit("/metrics", ask=None)[0] == "200 OK"
    assert visit("/", ask=None)[0] == visit("/status.json", ask=None)[0] == "404 Not Found"


@pytest.mark.parametrize("path", ["/", "/metrics", "/status.json", "/nothing"])
def test_nothing_is_taken_from_visitors(path: str) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        status, headers, _ = visit(path, method)
        assert (status, headers["Allow"]) == ("405 Method Not Allowed", "GET, HEAD")


@pytest.mark.parametrize("version", ["x", "1.x", "1.0.0.0.0"])
def test_whoever_asks_for_what_makes_no_sense_gets_an_answer(version: str) -> None:
    wanted = f"application/openmetrics-text;version={version}"
    status, _, _ = visit("/metrics", HTTP_ACCEPT=wanted)
    assert status in {"200 OK", "400 Bad Request"}


@pytest.mark.parametrize("path", ["/", "/metrics", "/status.json", "/nothing"])
def test_head_says_what_get_would_say_but_for_the_body(path: str) -> None:
    status, headers, body = visit(path)
    again, same, nothing = visit(path, "HEAD")
    assert (again, same.keys(), nothing) == (status, headers.keys(), b"")
    assert headers["Content-Length"] == str(len(body))
    # The metrics are others each time they are read.
    assert path == "/metrics" or same == headers
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_the_page_may_run_its_own_script_and_style_and_ask_its_daemon_alone() -> None:
    _, headers, body = visit("/")
    rules = dict(rule.split(" ", 1) for rule in headers["Content-Security-Policy"].split("; "))
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", body.decode(), re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert rules["default-src"] == rules["frame-ancestors"] == "'none'"
    assert rules["connect-src"] == "'self'"


def test_the_page_is_whole_and_names_no_other_place() -> None:
    text = page.load().body.decode()
    assert "/* script */" not in text
    assert "/* style */" not in text
    assert set(re.findall(r"https?://[^'\"]+", text)) == {"http://www.w3.org/2000/svg"}
    assert re.findall(r"(?:src|url|@import)\s*[=(]", text) == []
    for meaning in MEANINGS.values():
        assert meaning in text
    for stage in MEANINGS:
        assert f".{stage} {{" in text, "every stage has its colour"


def test_the_page_sets_names_as_text_and_never_as_html() -> None:
    text = page.load().body.decode()
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way not in text


def test_a_loop_is_asked_from_another_thread() -> None:
    async def status() -> pb.StatusResponse:
        return pb.StatusResponse(node_id="here")

    async def main() -> str:
        ask = web.asking(asyncio.get_running_loop(), status)
        return (await asyncio.to_thread(ask)).node_id

    assert asyncio.run(main()) == "here"


def test_a_loop_that_is_stuck_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "ANSWER_SECONDS", 0.01)

    async def status() -> pb.StatusResponse:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async def main() -> None:
        ask = web.asking(asyncio.get_running_loop(), status)
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(ask)

    asyncio.run(main())


def test_a_loop_that_has_ended_is_not_asked() -> None:
    loop = asyncio.new_event_loop()
    loop.close()

    async def status() -> pb.StatusResponse:
        raise AssertionError("it is not asked")

    with pytest.raises(TimeoutError, match="stopped"):
        web.asking(loop, status)()
