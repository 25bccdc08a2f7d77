"""What there is on a host, as it says it of itself."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Interface:
    """One that has an address which others could use."""

    name: str
    addresses: list[str]
    mtu: int


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """A port of /sys/class/infiniband."""

    device: str
    port: int
    state: str
    """As the kernel has it: ACTIVE, DOWN, ..."""
    link_layer: str
    """InfiniBand, or Ethernet, which is RoCE."""
    rate: str
    interfaces: list[str]
    """Network interfaces of the device: with InfiniBand, IPoIB."""


@dataclass(frozen=True, slots=True)
class Host:
    """One of the nodes. Sizes in bytes; rates in bytes per second."""

    name: str
    node: str
    """Random where nothing else tells hosts apart: this boot of this network namespace."""
    ranks: list[int]
    address: str
    """Where the others reach it."""
    named: list[str]
    """What its own name leads to, here."""
    interfaces: list[Interface]
    versions: dict[str, str]
    proxies: list[str]
    """Variables of the environment that name one."""
    memlock: int | None
    """None: no limit."""
    descriptors: int | None
    shm_folder: str
    shm_room: int
    memory_room: int | None
    """What the container may take still; None: no limit."""
    processors: float
    sum_rate: float
    """fp32 that one core adds up."""
    codec_rates: dict[str, float]
    daemon: str
    """What answers at the usual socket: its address, or why nothing does."""
    certificates: str
    """Whom they name and until when, or what is wrong with them; nothing without any."""
    certificates_wrong: bool = False
    gpus: list[str] = field(default_factory=list)
    gpu_note: str = ""
    """Why there are none, or what driver they have."""
    nvlink: list[list[str]] = field(default_factory=list)
    """Between each two GPUs, as `nvidia-smi topo -m` has it."""
    rdma: list[RdmaPort] = field(default_factory=list)
    master: str = ""
    """What MASTER_ADDR says, and leads to."""
    master_addresses: list[str] = field(default_factory=list)

    def to_json(self) -> bytes:
        """For the other nodes."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Host:
        """What another node has said."""
        said: dict[str, Any] = json.loads(text)
        said["interfaces"] = [Interface(**each) for each in said["interfaces"]]
        said["rdma"] = [RdmaPort(**each) for each in said["rdma"]]
        return cls(**said)


@dataclass(frozen=True, slots=True)
class Link:
    """From one node to another, as it was measured."""

    source: str
    """Names of hosts."""
    target: str
    error: str = ""
    """Why nothing was measured; `refused` or `filtered` first where that is it."""
    rate: float = 0.0
    """Bytes per second of payload over TCP."""
    round_trip: float = 0.0
    """Seconds, the least of several."""
    path_mtu: int = 0
    """Bytes of the largest packet that the kernel knows to pass; 0: not known."""
    clock_ahead: float = 0.0
    """Seconds by which the target's clock of the day is ahead."""
