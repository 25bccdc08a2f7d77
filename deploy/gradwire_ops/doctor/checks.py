"""What facts mean for a job. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gradwire_ops.doctor.finding import Finding
from gradwire_proto.addresses import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradwire_ops.doctor.facts import Host, Link, RdmaPort
    from gradwire_ops.doctor.finding import Verdict

LEAST_DESCRIPTORS = 1024
LEAST_MEMLOCK = 1 << 30
"""For RDMA: what is registered is locked. Gradwire itself locks nothing."""
ARENA_BYTES = 48 << 20
"""What a job reserves on a node with the usual chunks and slots."""
LEAST_CODEC_RATE = 0.5e9
MOST_CLOCK_SECONDS = 1.0
"""Beyond this logs of several nodes are hard to read together. Nothing depends on it."""
SLOW_SHARE = 0.5
"""Of the fastest."""
USUAL_MTU = 1500


def host_findings(host: Host, *, alone: bool) -> Iterator[Finding]:
    """Of one host; `alone`: there are no others that would have to find it."""
    yield _memory(host)
    yield _descriptors(host)
    yield _codecs(host)
    yield _names(host, alone=alone)
    yield _proxies(host)
    yield _daemon(host)
    yield _certificates(host)
    yield _gpus(host)
    yield _nvlink(host)
    yield from _rdma(host)


def job_findings(hosts: Sequence[Host], world_size: int) -> Iterator[Finding]:
    """Of all hosts of a job together."""
    yield _versions(hosts)
    yield _ranks(hosts, world_size)
    yield _master(hosts)


def link_findings(links: Sequence[Link]) -> Iterator[Finding]:
    """Of the ways between them."""
    rates = [link.rate for link in links if link.rate > 0]
    fastest = max(rates, default=0.0)
    mtus = [link.path_mtu for link in links if link.path_mtu]
    for link in links:
        where = f"{link.source} -> {link.target}"
        yield _reach(link, where, fastest)
        if not link.error:
            yield _mtu(link, where, max(mtus, default=0))
            yield _clock(link, where)


def _memory(host: Host) -> Finding:
    room, folder = host.shm_room, host.shm_folder
    if host.memory_room is not None:
        room = min(room, host.memory_room)
    found = f"{room >> 20} MiB in {folder}"
    if room >= ARENA_BYTES:
        return Finding("shared memory", host.name, "ok", found)
    why = "the container's memory limit leaves that" if room < host.shm_room else "it is small"
    return Finding(
        "shared memory",
        host.name,
        "failure",
        found,
        f"a job takes {ARENA_BYTES >> 20} MiB and more on a node, and {why}: enlarge it"
        " (docker: --shm-size, or --memory), choose another folder with GRADWIRE_SHM_DIR, or"
        " set GRADWIRE_SLOTS=2",
    )


def _descriptors(host: Host) -> Finding:
    limit = host.descriptors
    if limit is None or limit >= LEAST_DESCRIPTORS:
        found = "no limit" if limit is None else str(limit)
        return Finding("open files", host.name, "ok", found)
    return Finding(
        "open files",
        host.name,
        "warning",
        str(limit),
        f"expected {LEAST_DESCRIPTORS} or more: ulimit -n, or LimitNOFILE= of the service",
    )


def _codecs(host: Host) -> Finding:
    rates = ", ".join(f"{name} {rate / 1e9:.1f}" for name, rate in host.codec_rates.items())
    sums = f"sums {host.sum_rate / 1e9:.1f}"
    found = f"{sums}, {rates} GB/s of one core; {host.processors:g} cores"
    slow = [name for name, rate in host.codec_rates.items() if rate < LEAST_CODEC_RATE]
    if not slow:
        return Finding("codecs", host.name, "ok", found)
    return Finding(
        "codecs",
        host.name,
        "warning",
        found,
        f"{', '.join(slow)}: coding may take longer than sending does; compare with `gradwire"
        " bench --codecs`, and see whether something else has the processors",
    )


def _names(host: Host, *, alone: bool) -> Finding:
    local = [each for each in host.named if is_loopback(each)]
    found = f"{host.name} is {' '.join(host.named) or 'not known'}"
    if alone or (host.named and not local):
        return Finding("own name", host.name, "ok", found)
    return Finding(
        "own name",
        host.name,
        "warning",
        found,
        f"gloo and NCCL may tell the others an address that leads to themselves: put"
        f" {host.address} {host.name} into /etc/hosts, or set GLOO_SOCKET_IFNAME and"
        " NCCL_SOCKET_IFNAME. Gradwire itself goes by the way to the job's master, or"
        " --advertise",
    )


def _proxies(host: Host) -> Finding:
    if not host.proxies:
        return Finding("proxies", host.name, "ok", "none in the environment")
    return Finding(
        "proxies",
        host.name,
        "ok",
        f"{', '.join(host.proxies)}: not used between ranks and daemons",
    )


def _daemon(host: Host) -> Finding:
    return Finding("daemon", host.name, "ok", host.daemon)


def _certificates(host: Host) -> Finding:
    if not host.certificates:
        return Finding("certificates", host.name, "absent", "GRADWIRE_CERTS is not set")
    if not host.certificates_wrong:
        return Finding("certificates", host.name, "ok", host.certificates)
    remedy = "`gradwire certs issue` or `renew` makes new ones; `show` says what is wrong"
    return Finding("certificates", host.name, "failure", host.certificates, remedy)


def _gpus(host: Host) -> Finding:
    if not host.gpus:
        return Finding("GPUs", host.name, "absent", host.gpu_note or "none")
    return Finding("GPUs", host.name, "ok", f"{', '.join(host.gpus)}; {host.gpu_note}")


def _nvlink(host: Host) -> Finding:
    pairs = [
        (a, b, how) for a, row in enumerate(host.nvlink) for b, how in enumerate(row) if a < b
    ]
    if not pairs:
        return Finding("NVLink", host.name, "absent", "fewer than two GPUs")
    without = [f"{a}-{b} ({how})" for a, b, how in pairs if not how.startswith("NV")]
    if not without:
        kinds = ", ".join(sorted({how for _, _, how in pairs}))
        found = f"between all {len(host.nvlink)} GPUs: {kinds}"
        return Finding("NVLink", host.name, "ok", found)
    return Finding(
        "NVLink",
        host.name,
        "warning",
        f"none between {', '.join(without)}",
        "NVLink is hardware: a bridge or a board that has it. If it should be there, look at"
        " `nvidia-smi nvlink --status` and the driver's log",
    )


def _rdma(host: Host) -> Iterator[Finding]:
    if not host.rdma:
        yield Finding("RDMA", host.name, "absent", "no device in /sys/class/infiniband")
        return
    for port in host.rdma:
        yield _port(host, port)
    limit = host.memlock
    if limit is None or limit >= LEAST_MEMLOCK:
        found = "no limit" if limit is None else f"{limit >> 20} MiB"
        yield Finding("locked memory", host.name, "ok", found)
    else:
        yield Finding(
            "locked memory",
            host.name,
            "failure",
            f"{limit >> 10} KiB",
            "RDMA locks what it registers: ulimit -l unlimited, LimitMEMLOCK=infinity, or"
            " docker's --ulimit memlock=-1",
        )


def _port(host: Host, port: RdmaPort) -> Finding:
    kind = "RoCE" if port.link_layer == "Ethernet" else port.link_layer
    on = ", ".join(port.interfaces) or "no network interface"
    found = f"{port.device}/{port.port}: {port.state}, {kind}, {port.rate}, {on}"
    if port.state != "ACTIVE":
        remedy = "expected ACTIVE: look at the cable, the switch, and for InfiniBand at the"
        return Finding("RDMA", host.name, "failure", found, f"{remedy} subnet manager")
    if not port.interfaces:
        remedy = "without IPoIB, or an address for RoCE, peers can't find one another: ip link"
        return Finding("RDMA", host.name, "warning", found, f"{remedy} shows what is there")
    return Finding("RDMA", host.name, "ok", found)


def _versions(hosts: Sequence[Host]) -> Finding:
    everywhere = "all hosts"
    if len({host.versions.get("protocol") for host in hosts}) > 1:
        verdict: Verdict = "failure"
    elif len({tuple(sorted(host.versions.items())) for host in hosts}) > 1:
        verdict = "warning"
    else:
        said = ", ".join(f"{name} {version}" for name, version in hosts[0].versions.items())
        return Finding("versions", everywhere, "ok", said)
    said = "; ".join(
        f"{host.name}: {', '.join(f'{name} {each}' for name, each in host.versions.items())}"
        for host in hosts
    )
    remedy = "install one release of Gradwire everywhere, and better of torch and Python, too"
    return Finding("versions", everywhere, verdict, said, remedy)


def _ranks(hosts: Sequence[Host], world_size: int) -> Finding:
    ranks = Counter(rank for host in hosts for rank in host.ranks)
    twice = sorted(rank for rank, times in ranks.items() if times > 1)
    outside = sorted(rank for rank in ranks if not 0 <= rank < world_size)
    missing = sorted(set(range(world_size)) - set(ranks))
    wrong = [
        f"{word} {', '.join(map(str, which))}"
        for word, which in (("twice:", twice), ("outside:", outside), ("missing:", missing))
        if which
    ]
    if not wrong:
        return Finding("ranks", "all hosts", "ok", f"0 to {world_size - 1}, each once")
    return Finding(
        "ranks",
        "all hosts",
        "failure",
        "; ".join(wrong),
        f"expected each of 0 to {world_size - 1} once: RANK is unique to a process, and"
        " LOCAL_RANK to a process of its node; torchrun sets both",
    )


def _master(hosts: Sequence[Host]) -> Finding:
    first = hosts[0]
    if not first.master:
        return Finding("MASTER_ADDR", "all hosts", "absent", "not set")
    names = {host.master for host in hosts}
    found = "; ".join(
        f"{host.name}: {host.master} is {' '.join(host.master_addresses) or 'not known'}"
        for host in hosts
    )
    elsewhere = [host for host in hosts[1:] if _leads_home(host)]
    unknown = [host for host in hosts if not host.master_addresses]
    if len(names) == 1 and not unknown and (len(hosts) == 1 or not elsewhere):
        return Finding("MASTER_ADDR", "all hosts", "ok", found)
    return Finding(
        "MASTER_ADDR",
        "all hosts",
        "failure",
        found,
        "expected one address of the host of rank 0 that the others reach: loopback, or a name"
        " that leads there on one of them, is none",
    )


def _leads_home(host: Host) -> bool:
    return any(map(is_loopback, host.master_addresses))


def _reach(link: Link, where: str, fastest: float) -> Finding:
    if link.error:
        return Finding(
            "link",
            where,
            "failure",
            link.error,
            "open the port to the other nodes; deploy/README.md has the rules for nftables, ufw"
            " and clouds",
        )
    rate = f"{8 * link.rate / 1e9:.2f} Gbit/s, " if link.rate else "answers, "
    found = f"{rate}{1e3 * link.round_trip:.2f} ms round trip"
    if not link.rate or link.rate >= SLOW_SHARE * fastest:
        return Finding("link", where, "ok", found)
    return Finding(
        "link",
        where,
        "warning",
        found,
        f"less than half of the fastest link's {8 * fastest / 1e9:.2f} Gbit/s: look at its"
        " cable, port and other traffic, or set GRADWIRE_BANDWIDTH on the slow node, so that"
        " it adds up a smaller share",
    )


def _mtu(link: Link, where: str, largest: int) -> Finding:
    if not link.path_mtu:
        return Finding("path MTU", where, "absent", "the kernel does not know it")
    found = f"{link.path_mtu} bytes"
    if link.path_mtu >= min(USUAL_MTU, largest):
        return Finding("path MTU", where, "ok", found)
    return Finding(
        "path MTU",
        where,
        "warning",
        found,
        f"expected {min(USUAL_MTU, largest)}, as elsewhere: a tunnel or a port on the way takes"
        " less. Large packets may vanish where ICMP does",
    )


def _clock(link: Link, where: str) -> Finding:
    found = f"{1e3 * link.clock_ahead:+.0f} ms"
    if abs(link.clock_ahead) <= MOST_CLOCK_SECONDS:
        return Finding("clock", where, "ok", found)
    remedy = "logs of the nodes don't fit together: run NTP or chrony; no deadline needs it"
    return Finding("clock", where, "warning", found, remedy)
