"""A script: a command a line, and below it what came of it.

Lines that begin with # or are empty are the reader's. The first command sets the scene, and
says which. What came of a command stands below it, each line after an arrow. A scene's methods
say which commands they carry out, with a regular expression; what its groups find is handed
over, numbers as such. Errors of the daemon's own are part of the story.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

from gradwire_server.errors import GradwireServerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

ARROW = "  -> "

M = TypeVar("M", bound="Callable[..., Any]")


class Scene:
    """Carries commands out, and says what came of them."""

    def act(self, command: str) -> list[str]:
        """Raises LookupError for a command that the scene does not know."""
        for name in dir(type(self)):
            method = getattr(self, name)
            if found := re.fullmatch(getattr(method, "command", "(?!)"), command):
                try:
                    return list(method(*map(_value, found.groups())))
                except GradwireServerError as error:
                    return [f"{type(error).__name__}: {error}"]
        raise LookupError(f"{type(self).__name__} has no such command: {command}")

    def close(self) -> list[str]:
        """The script has ended; gives what should not be there any more."""
        return []


def command(pattern: str) -> Callable[[M], M]:
    """The method carries such commands out."""

    def mark(method: M) -> M:
        method.command = pattern  # type: ignore[attr-defined]  # read by Scene.act
        return method

    return mark


def play(script: str, scenes: Iterable[type[Scene]]) -> str:
    """The script, with what really comes of its commands."""
    return "\n".join(_played(script.splitlines(), list(scenes))) + "\n"


def scene_of(script: str, scenes: Iterable[type[Scene]]) -> type[Scene]:
    """The one that the script's first command sets. LookupError where it sets none."""
    return _find(next(filter(_is_command, script.splitlines()), ""), list(scenes))[0]


def numbers(text: str | int) -> list[int]:
    """Those in a text."""
    return [int(each) for each in re.findall(r"\d+", str(text))]


def _is_command(line: str) -> bool:
    return bool(line) and not line.startswith(("#", ARROW))


def _played(lines: list[str], scenes: list[type[Scene]]) -> Iterator[str]:
    scene: Scene | None = None
    try:
        for line in lines:
            if line.startswith(ARROW):
                continue
            yield line
            if not _is_command(line):
                continue
            if scene is None:
                kind, found = _find(line, scenes)
                scene = kind(*found)
            else:
                yield from (ARROW + said for said in scene.act(line))
    finally:
        left = [] if scene is None else scene.close()
    yield from (f"{ARROW}left behind: {each}" for each in left)


def _find(line: str, scenes: list[type[Scene]]) -> tuple[type[Scene], list[str | int | None]]:
    for scene in scenes:
        if found := re.fullmatch(getattr(scene, "command", "(?!)"), line):
            return scene, list(map(_value, found.groups()))
    raise LookupError(f"no scene is set by: {line}")


def _value(text: str | None) -> str | int | None:
    return int(text) if text is not None and text.isdecimal() else text
