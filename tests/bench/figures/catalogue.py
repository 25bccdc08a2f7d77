"""The settings, and what each ought to reach. Pure."""

from __future__ import annotations

from figures.setting import (
    KIB,
    MB,
    MIB,
    Aim,
    Bar,
    Benchmark,
    Cell,
    Comparison,
    Overlap,
    Program,
    Setting,
)

ONE_NODE = "One node"
LAB = "Nodes with links of their own"
NODES = "More nodes, more links, unequal links"
LOOPBACK = "Large tensors over loopback (P01)"
GROUP = "As the backend of torch.distributed"
CORES = "Daemons on so many cores each (P12)"
WIRES = "Lossy wires (P10)"
WORKERS = "Daemons of several processes"
TRAINING = "Training steps"
URGENT = "What is urgent"

LARGE = 64 * MIB
GROWING = (1 * MB, 10 * MB, 100 * MB, 500 * MB)
_BIG = (20 * MB, 100 * MB, 500 * MB)


def _lab(
    name: str, layout: tuple[int, int], rate: str, speedup: float, efficiency: float = 0
) -> Benchmark:
    """64 MiB on links of this rate."""
    nodes, ranks = layout
    bars = (Bar(LARGE, "efficiency", efficiency),) if efficiency else ()
    return Benchmark(
        name,
        LAB,
        f"{nodes} nodes x {ranks} ranks, {rate}",
        f"--lab --nodes {nodes} --ranks-per-node {ranks} --rate {rate}",
        (LARGE,),
        (*bars, Bar(LARGE, "x gloo", speedup)),
    )


def _far(name: str, title: str, bars: tuple[Bar, ...], **environment: str) -> Benchmark:
    flags = "--lab --nodes 2 --ranks-per-node 1 --rate 1gbit --delay 50ms"
    title = f"2 nodes x 1 rank, 1gbit, round trip 50 ms, {title}"
    return Benchmark(name, LAB, title, flags, (LARGE,), bars, environment)


def _nodes(count: int) -> Benchmark:
    flags = f"--lab --nodes {count} --ranks-per-node 1 --rate 1gbit"
    return Benchmark(f"nodes-{count}", NODES, f"{count} nodes x 1 rank, 1gbit", flags, (LARGE,))


def _cores(count: int) -> Benchmark:
    flags = f"--nodes 2 --ranks-per-node 1 --daemon-cores {count}"
    title = f"2 nodes x 1 rank, daemons on {count} core{'s' if count > 1 else ''} each"
    return Benchmark(f"cores-{count}", CORES, title, flags, _BIG)


def _group(op: str, *bars: Bar) -> Benchmark:
    flags = f"--nodes 1 --ranks-per-node 4 --path pg --op {op}"
    sizes = (64 * KIB, MIB, LARGE)
    return Benchmark(f"group-{op}", GROUP, f"1 node x 4 ranks, {op}", flags, sizes, bars)


def _wire(wire: str, fewer: float, speedup: float = 0) -> Benchmark:
    """A lossy wire on a slow link."""
    faster = (Bar(LARGE, "x gloo", speedup),) if speedup else ()
    return Benchmark(
        f"wire-{wire}",
        WIRES,
        f"2 nodes x 2 ranks, 1gbit, {wire}",
        f"--lab --nodes 2 --ranks-per-node 2 --rate 1gbit --wire {wire}",
        (LARGE,),
        (*faster, Bar(LARGE, "x fewer bytes", fewer)),
    )


def _workers(count: int) -> Benchmark:
    flags = f"--lab --nodes 2 --ranks-per-node 1 --rate none --workers {count}"
    title = f"2 nodes x 1 rank, no limit, {count} worker{'s' if count > 1 else ''}"
    return Benchmark(f"workers-{count}", WORKERS, title, flags, (LARGE,))


def _training(nodes: int, pace: str, layer_ms: int) -> Program:
    """An accelerator needs half as long for a layer forward as backward."""
    arguments = f"--nodes {nodes} --layer-ms {layer_ms}"
    title = f"{nodes} node{'s' if nodes > 1 else ''} x 1 rank, {pace}"
    return Program(f"training-{pace}-{nodes}", TRAINING, title, "figures.training", arguments)


SETTINGS: tuple[Setting, ...] = (
    Benchmark(
        "one-node",
        ONE_NODE,
        "1 node x 4 ranks",
        "--nodes 1 --ranks-per-node 4",
        bars=(
            Bar(LARGE, "x gloo", 3),
            Bar(MIB, "x gloo", 6),
            Bar(64 * KIB, "x gloo", 8),
        ),
    ),
    Program("copy", ONE_NODE, "a plain copy of the same bytes", "figures.controls", "copy"),
    _group("sum"),
    _group("all-gather", Bar(LARGE, "x gloo", 2)),
    _group("reduce-scatter", Bar(LARGE, "x gloo", 2)),
    _group("broadcast", Bar(LARGE, "x gloo", 2)),
    _lab("1gbit-2x2", (2, 2), "1gbit", 1.45, 0.96),
    _lab("1gbit-2x4", (2, 4), "1gbit", 1.65, 0.95),
    _lab("500mbit-4x2", (4, 2), "500mbit", 1.08, 0.94),
    _lab("2500mbit-2x2", (2, 2), "2500mbit", 1.35, 0.90),
    _lab("5gbit-2x2", (2, 2), "5gbit", 1.05),
    Benchmark(
        "none-2x2",
        LAB,
        "2 nodes x 2 ranks, no limit",
        "--lab --nodes 2 --ranks-per-node 2 --rate none",
        bars=(Bar(LARGE, "x gloo", 0.9), Bar(64 * KIB, "x gloo", 3)),
    ),
    _far(
        "far",
        "as many connections as suit",
        (Bar(LARGE, "efficiency", 0.85), Bar(LARGE, "x gloo", 3)),
    ),
    _far("far-1", "1 connection", (), GRADWIRE_CONNECTIONS="1"),
    _nodes(2),
    _nodes(3),
    Benchmark(
        "interfaces",
        NODES,
        "2 nodes x 1 rank, 2 links of 500mbit each",
        "--lab --nodes 2 --ranks-per-node 1 --rate 500mbit --interfaces 2",
        (LARGE,),
        (Bar(LARGE, "of the links' rate", 0.9),),
    ),
    Benchmark(
        "unequal",
        NODES,
        "4 nodes x 1 rank, three with 1gbit, one with 200mbit",
        "--lab --nodes 4 --ranks-per-node 1 --rate 1gbit,1gbit,1gbit,200mbit",
        (LARGE,),
    ),
    Benchmark(
        "growing",
        LOOPBACK,
        "2 nodes x 1 rank",
        "--nodes 2 --ranks-per-node 1",
        GROWING,
    ),
    Program("socket", LOOPBACK, "a plain TCP socket", "figures.controls", "socket"),
    # Half, 0.27 and 0.02 of exact bytes, and one hundredth more.
    _wire("exact", 0.99),
    _wire("bf16", 1.96, 2.7),
    _wire("fp16", 1.96),
    _wire("int8", 3.57, 4.5),
    _wire("fp8", 3.57),
    _wire("topk", 33.3, 6),
    Benchmark(
        "wire-bf16-none",
        WIRES,
        "2 nodes x 2 ranks over loopback, bf16",
        "--nodes 2 --ranks-per-node 2 --wire bf16",
        (LARGE,),
        (Bar(LARGE, "x gloo", 1.1),),
    ),
    _cores(1),
    _cores(2),
    *map(_workers, (1, 2, 4)),
    *(
        _training(nodes, pace, layer_ms)
        for pace, layer_ms in (("slow", 20), ("fast", 4))
        for nodes in (1, 2, 4)
    ),
    Program("urgent", URGENT, "2 nodes x 1 rank, 1gbit", "figures.urgency", "--nodes 2"),
)

AIMS: tuple[Aim, ...] = (
    Comparison(
        "two nodes take at most 1.1 x the time of three",
        Cell("nodes-2", LARGE),
        Cell("nodes-3", LARGE),
        1.1,
    ),
    Comparison(
        "no drop from 10 to 500 MB: a byte takes at most 1.05 x as long",
        Cell("growing", GROWING[3]),
        Cell("growing", GROWING[1]),
        1.05,
    ),
    Overlap("training-slow-2", 0.9),
    Overlap("training-slow-4", 0.9),
)
