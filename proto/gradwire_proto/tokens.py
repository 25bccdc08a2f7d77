"""Job tokens: who bears one may sit in these seats of this job, until then.

A JSON Web Token (RFC 7519) under HMAC-SHA256 with the key of all daemons. Its claims: `sub`,
the job's name, `ranks`, `*` or ranks like `0-3,8`, and `exp`, seconds since 1970, where it
expires. A token is a secret: it says nothing about who bears it.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import jwt

VARIABLE, FILE_VARIABLE = "GRADWIRE_TOKEN", "GRADWIRE_TOKEN_FILE"

LEAST_KEY_BYTES = 32
LONGEST = 2048
"""Characters of a token: more is none."""

_ALGORITHM = "HS256"
_JOB = re.compile(r"[A-Za-z0-9._-]{1,64}")
_RANKS = re.compile(r"\*|\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*")


class Claim(NamedTuple):
    """What a token says."""

    job: str
    ranks: str = "*"

    def covers(self, rank: int) -> bool:
        """Whether this rank's seat is one of them."""
        if self.ranks == "*":
            return True
        return any(first <= rank <= last for first, last in self.spans)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """First and last of each; none where it is for all ranks."""
        if self.ranks == "*":
            return []
        parts = (part.partition("-") for part in self.ranks.split(","))
        return [(int(first), int(last or first)) for first, _, last in parts]


def make(key: bytes, claim: Claim, expires: int | None = None) -> str:
    """A token. Raises ValueError where it would be none."""
    if len(key) < LEAST_KEY_BYTES:
        raise ValueError(f"expected a key of {LEAST_KEY_BYTES} bytes or more, got {len(key)}")
    _check(claim)
    said: dict[str, Any] = {"sub": claim.job, "ranks": claim.ranks}
    if expires is not None:
        said["exp"] = expires
    return jwt.encode(said, key, _ALGORITHM)


def read(key: bytes, token: str) -> Claim:
    """What a token says, if it is genuine and has not expired. Raises ValueError."""
    if not token or len(token) > LONGEST:
        raise ValueError(f"expected a token of up to {LONGEST} characters, got {len(token)}")
    try:
        said = jwt.decode(
            token, key, algorithms=[_ALGORITHM], options={"require": ["sub", "ranks"]}
        )
    except (jwt.PyJWTError, ValueError) as error:
        raise ValueError(f"the token is not good here: {error}") from None
    return _check(Claim(said["sub"], said["ranks"]))


def _check(claim: Claim) -> Claim:
    if not isinstance(claim.job, str) or not _JOB.fullmatch(claim.job):
        raise ValueError(
            f"expected a job's name of 1 to 64 letters, digits and .-_, got {claim.job!r}"
        )
    if not isinstance(claim.ranks, str) or not _RANKS.fullmatch(claim.ranks):
        raise ValueError(f"expected ranks like 0-3,8, or *, got {claim.ranks!r}")
    if any(first > last for first, last in claim.spans):
        raise ValueError(f"expected ranks from the lower to the higher, got {claim.ranks!r}")
    return claim
