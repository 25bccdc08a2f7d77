"""Where the processes of a node run. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Place:
    """A way in, and what other nodes reach there; by default this machine's loopback."""

    prefix: tuple[str, ...] = ()
    """Stands before a command to run it there. It must become the command, not its parent."""
    addresses: tuple[str, ...] = ("127.0.0.1",)
    """One on each network that leads to other nodes; where ranks meet is the first."""
    interface: str = "lo"
    """The network interface that has the first address."""

    bandwidth: int = 0
    """Bits per second, where the nodes' networks differ."""

    @property
    def address(self) -> str:
        """The first address."""
        return self.addresses[0]

    def on_cores(self, cores: tuple[int, ...]) -> Place:
        """The same, for processes that shall run on these cores alone."""
        pin = ("taskset", "--cpu-list", ",".join(map(str, cores)))
        return replace(self, prefix=(*self.prefix, *pin))


HERE = Place()
