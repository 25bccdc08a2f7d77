"""How a host's GPUs are connected, as `nvidia-smi topo -m` prints it, and as NVML says it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_CODES = re.compile(r"\x1b\[[0-9;]*m")
# nvmlGpuTopologyLevel_t, from the closest on.
_PCIE = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_WORDS = re.compile(r"X|SYS|NODE|PHB|PXB|PIX|NV\d+")


def read_matrix(text: str) -> list[list[str]]:
    """How each GPU reaches each other: `NV4` over four NVLinks; PIX, PXB, PHB, NODE, SYS over
    ever more of PCIe and the processors; X is itself. Raises ValueError for what is none.
    """
    lines = [_CODES.sub("", line) for line in text.splitlines()]
    heads = [line.split() for line in lines if "GPU0" in line and not line.startswith("GPU")]
    if not heads:
        raise ValueError("expected the matrix of `nvidia-smi topo -m`, found no line of GPUs")
    count = sum(bool(re.fullmatch(r"GPU\d+", word)) for word in heads[0])
    rows = {}
    for line in lines:
        name, *cells = line.split() or [""]
        if re.fullmatch(r"GPU\d+", name):
            rows[int(name[3:])] = cells[:count]
    if sorted(rows) != list(range(count)) or any(len(row) != count for row in rows.values()):
        raise ValueError(f"expected {count} rows of {count} GPUs, found {sorted(rows)}")
    matrix = [rows[number] for number in range(count)]
    if wrong := [word for row in matrix for word in row if not _WORDS.fullmatch(word)]:
        raise ValueError(f"expected words like NV4, PIX or SYS, found {wrong[0]!r}")
    return matrix


def read_links(nvml: Any, handles: Sequence[Any]) -> list[list[str]]:  # noqa: ANN401 - a module
    """The same from NVML: `nvml` is pynvml, `handles` are its devices."""
    addresses = [nvml.nvmlDeviceGetPciInfo(handle).busId for handle in handles]
    return [
        [
            "X"
            if one == other
            else _between(nvml, handles[one], handles[other], addresses[other])
            for other in range(len(handles))
        ]
        for one in range(len(handles))
    ]


def _between(nvml: Any, here: Any, there: Any, address: object) -> str:  # noqa: ANN401 - handles
    links = sum(
        to == address or kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
        for to, kind in _nvlinks(nvml, here)
    )
    if links:
        return f"NV{links}"
    return _PCIE.get(nvml.nvmlDeviceGetTopologyCommonAncestor(here, there), "SYS")


def _nvlinks(nvml: Any, handle: Any) -> Iterator[tuple[object, object]]:  # noqa: ANN401 - handles
    """Of each link that is up: the address of what is at its other end, and its kind."""
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(handle, link):
                kind = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
                yield nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId, kind
        except nvml.NVMLError:
            # This device has fewer.
            return
