"""What a check has found, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

Verdict: TypeAlias = Literal["ok", "warning", "failure", "absent"]
"""`absent`: there is no such thing here, and it is not needed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Of one check in one place."""

    check: str
    where: str
    """A host, or two: `a -> b`."""
    verdict: Verdict
    found: str
    remedy: str = ""
    """What was expected, and what to do; nothing where all is well."""

    def to_dict(self) -> dict[str, Any]:
        """For json.dump."""
        return asdict(self)
