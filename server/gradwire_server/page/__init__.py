"""The status page: one document with everything in it, joined from the files beside this one.

It works where there is no internet, and may load nothing: its policy names the digests of its
one style and its one script, and the daemon as the only place to ask.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from gradwire_proto.stages import MEANINGS

SCRIPTS = ("words.js", "elements.js", "picture.js", "job.js", "page.js")
"""In the order in which they stand in the page: each uses what is above it."""


@dataclass(frozen=True, slots=True)
class Page:
    """A document, and what a browser may do with it."""

    body: bytes
    policy: str


@cache
def load() -> Page:
    """The page; it is the same for all who ask."""
    style = _read("style.css")
    script = "\n".join([f"const STAGES = {json.dumps(MEANINGS)};", *map(_read, SCRIPTS)])
    document = _read("index.html")
    for mark, text in (("/* style */", style), ("/* script */", script)):
        document = document.replace(mark, text)
    policy = (
        "default-src 'none'",
        f"style-src {_digest(style)}",
        f"script-src {_digest(script)}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
    return Page(document.encode(), "; ".join(policy))


def _read(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """As a policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
