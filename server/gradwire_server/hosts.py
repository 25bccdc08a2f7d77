"""By which names the metrics page may be asked for. Pure.

A page of a stranger's can have its own name lead to an address of ours (DNS rebinding), and so
have its visitors' browsers ask us; but the browsers say that name, in the Host header.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from gradwire_proto.addresses import is_loopback, split_list

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:@/\[\]]+)(:\d*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Hosts:
    """Of one listener."""

    listen: str
    """Where it listens, without the port."""
    names: str = ""
    """Further names, with commas."""

    def welcome(self, header: str | None) -> bool:
        """Whether to answer. Who says no name is no browser.

        Beyond loopback the names of a host or service are anybody's to choose: without `names`
        all are good there.
        """
        local = is_loopback(self.listen)
        if header is None or not (local or self.names):
            return True
        match = _HOST.fullmatch(header)
        if match is None:
            return False
        host = match[1].strip("[]").rstrip(".").lower()
        if is_loopback(host) or host in map(str.lower, self._named):
            return True
        # No name leads to another address than the one that it is.
        return not local and _is_address(host)

    @property
    def _named(self) -> list[str]:
        return split_list(self.names) if self.names else []


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
