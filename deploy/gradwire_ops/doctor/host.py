"""Looks at this host."""

from __future__ import annotations

import os
import platform
import resource
import socket
import time
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch

from gradwire_ops import query
from gradwire_ops.doctor.facts import Host, Interface, RdmaPort
from gradwire_ops.doctor.topology import read_links
from gradwire_ops.status import places
from gradwire_proto import PROTOCOL, certificates
from gradwire_proto.addresses import is_loopback
from gradwire_proto.v1 import tensor_pb2 as pb
from gradwire_server.cgroup import Cgroup
from gradwire_server.codecs import SEGMENT_ELEMENTS, codec_of
from gradwire_server.memory_folder import MemoryFolder
from gradwire_server.whereabouts import network_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SYSFS = Path("/sys/class/infiniband")
PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")
CODECS = {"bf16": pb.WIRE_BF16, "int8": pb.WIRE_INT8}
ELEMENTS = SEGMENT_ELEMENTS
"""What is coded at once."""
ASK_SECONDS = 1.0


def look(environment: Mapping[str, str], address: str, ranks: list[int]) -> Host:
    """All that can be said without the others. `address`: where they reach this host."""
    folder = environment.get("GRADWIRE_SHM_DIR", "/dev/shm")  # noqa: S108 - the usual place
    cgroup = Cgroup()
    certified, wrong = _certificates(environment)
    gpus, note, matrix = _gpus()
    master = environment.get("MASTER_ADDR", "")
    cores = len(os.sched_getaffinity(0))
    return Host(
        name=socket.gethostname(),
        node=network_id(),
        ranks=ranks,
        address=address,
        named=resolve(socket.gethostname()),
        interfaces=_interfaces(),
        versions={
            "gradwire": version("gradwire"),
            "protocol": str(PROTOCOL),
            "torch": torch.__version__,
            "Python": platform.python_version(),
        },
        proxies=_proxies(environment),
        memlock=_limit(resource.RLIMIT_MEMLOCK),
        descriptors=_limit(resource.RLIMIT_NOFILE),
        shm_folder=folder,
        shm_room=MemoryFolder(Path(folder)).room,
        memory_room=cgroup.memory_room,
        processors=min(cores, cgroup.processors or cores),
        sum_rate=_sum_rate(),
        codec_rates=_codec_rates(),
        daemon=_daemon(environment),
        certificates=certified,
        certificates_wrong=wrong,
        gpus=gpus,
        gpu_note=note,
        nvlink=matrix,
        rdma=rdma_ports(SYSFS),
        master=master,
        master_addresses=resolve(master),
    )


def resolve(name: str) -> list[str]:
    """The addresses to which a name leads here; none where it leads nowhere."""
    if not name:
        return []
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return sorted({str(each[4][0]) for each in found})


def rdma_ports(sysfs: Path) -> list[RdmaPort]:
    """What the kernel says of RDMA devices."""
    found = []
    for device in sorted(sysfs.glob("*")):
        interfaces = sorted(path.name for path in device.glob("device/net/*"))
        for port in sorted(device.glob("ports/*")):
            # "4: ACTIVE"
            state = _text(port / "state").rpartition(":")[2].strip()
            layer, rate = _text(port / "link_layer"), _text(port / "rate")
            found.append(RdmaPort(device.name, int(port.name), state, layer, rate, interfaces))
    return found


def _proxies(environment: Mapping[str, str]) -> list[str]:
    return [name for each in PROXIES for name in (each, each.upper()) if environment.get(name)]


def _interfaces() -> list[Interface]:
    stats = psutil.net_if_stats()
    found = []
    for name, addresses in sorted(psutil.net_if_addrs().items()):
        usable = [
            each.address
            for each in addresses
            if each.family in (socket.AF_INET, socket.AF_INET6)
            and "%" not in each.address
            and not is_loopback(each.address)
        ]
        if usable and name in stats and stats[name].isup:
            found.append(Interface(name, usable, stats[name].mtu))
    return found


def _limit(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def _sum_rate() -> float:
    one, other = torch.ones(ELEMENTS), torch.ones(ELEMENTS)
    return _rate(lambda: one.add_(other))


def _codec_rates() -> dict[str, float]:
    values = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(1))
    rates = {}
    for name, wire in CODECS.items():
        codec = codec_of(wire)
        data = torch.empty(codec.size(ELEMENTS), dtype=torch.uint8)
        rates[name] = _rate(partial(codec.encode, values, data, 0))
    return rates


def _rate(work: Callable[[], Any], times: int = 20) -> float:
    """Bytes of fp32 a second on one core, of the quickest of several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        work()
        seconds = []
        for _ in range(times):
            begun = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - begun)
    finally:
        torch.set_num_threads(threads)
    return 4 * ELEMENTS / min(seconds)


def _daemon(environment: Mapping[str, str]) -> str:
    for place in places(environment.get("GRADWIRE_DAEMON")):
        with suppress(query.UnreachableError):
            said = query.describe(place, ASK_SECONDS)
            return f"{said.version} at {place}, for other nodes at {said.address}"
    return "none runs: the first rank would start one"


def _certificates(environment: Mapping[str, str]) -> tuple[str, bool]:
    folder = environment.get(certificates.VARIABLE)
    if not folder:
        return "", False
    try:
        facts = certificates.inspect(certificates.read(Path(folder)))
    except certificates.CertificateError as error:
        return f"{folder}: {error}", True
    until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(facts.expires))
    return f"for {', '.join(facts.names) or 'nobody'} until {until}", False


def _gpus() -> tuple[list[str], str, list[list[str]]]:
    """Names, the driver or why there are none, and how each two are connected."""
    try:
        import pynvml
    except ImportError:
        return [], "pynvml is not installed (pip install nvidia-ml-py)", []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return [], f"none that NVML knows of ({error})", []
    try:
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index)
            for index in range(pynvml.nvmlDeviceGetCount())
        ]
        names = [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
        driver = f"driver {pynvml.nvmlSystemGetDriverVersion()}"
        return names, driver, read_links(pynvml, handles)
    finally:
        pynvml.nvmlShutdown()


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
