"""The `gradwire` command: flags only. Each command lives in a module of its name.

Those modules are imported by the command that needs them, so that `gradwire --help` is quick.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from gradwire_ops import certs_cli, doctor_cli, serve_cli, tokens

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Gradient aggregation for PyTorch DDP: one daemon per node.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(certs_cli.app, name="certs")
app.add_typer(tokens.app, name="tokens")

_Daemon = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="unix:/PATH or HOST:PORT. Default: GRADWIRE_DAEMON, then the usual sockets.",
    ),
]


def main() -> None:
    """Entry point. Exit codes: 0 all is well, 1 a finding or failure, 2 wrong usage."""
    app()


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gradwire {metadata.version('gradwire')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print it."),
    ] = False,
) -> None:
    """Options that stand before a command."""


# The flags of `serve` are strings, whatever they mean, and have no defaults: the daemon's
# settings validate flags, environment and file together, and list all mistakes at once.
app.command()(serve_cli.serve)
app.command()(doctor_cli.doctor)


@app.command()
def demo(
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training data.")] = 8,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Train on handwritten digits over two nodes with two ranks each, and compare with gloo."""
    from gradwire_ops import demo as command

    raise typer.Exit(command.run(epochs, as_json=json))


# Strings for the same reason as those of `serve`.
@app.command()
def bench(  # noqa: PLR0913 - one parameter for each flag
    *,
    sizes: Annotated[
        str | None,
        typer.Option(metavar="SIZE,...", help="Tensor sizes; by default 4KiB to 64MiB."),
    ] = None,
    nodes: Annotated[
        str, typer.Option(metavar="N", help="Daemons; on loopback, unless --lab.")
    ] = "1",
    ranks_per_node: Annotated[str, typer.Option(metavar="N", help="Ranks of each.")] = "2",
    repeat: Annotated[
        str, typer.Option(metavar="N", help="Rounds of each size; the median counts.")
    ] = "7",
    dtype: Annotated[
        str, typer.Option(metavar="NAME", help="Type of the elements.")
    ] = "float32",
    op: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="sum, mean, min, max or product; with --path pg also all-gather,"
            " reduce-scatter or broadcast.",
        ),
    ] = "sum",
    path: Annotated[
        str,
        typer.Option(metavar="NAME", help="session, or pg: torch.distributed's backend grpc."),
    ] = "session",
    schedule: Annotated[
        str, typer.Option(metavar="NAME", help="auto, ring, tree, direct or one-shot.")
    ] = "auto",
    lab: Annotated[
        bool,
        typer.Option("--lab", help="Nodes are network namespaces; needs root and iproute2."),
    ] = False,
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="RATE[,...]",
            help="With --lab: of each node's link, each way (1gbit, 500mbit, none), or a list"
            " with one for each node.",
        ),
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="With --lab: added to a round trip (50ms, 200us)."),
    ] = None,
    mtu: Annotated[
        str | None, typer.Option(metavar="BYTES", help="With --lab: of the links; 1500.")
    ] = None,
    interfaces: Annotated[
        str | None, typer.Option(metavar="N", help="With --lab: links of each node; 1.")
    ] = None,
    daemon_cores: Annotated[
        str | None,
        typer.Option(metavar="N", help="Cores that each daemon may use; by default all."),
    ] = None,
    workers: Annotated[
        str | None, typer.Option(metavar="N", help="Processes of each daemon; 1.")
    ] = None,
    wire: Annotated[
        str,
        typer.Option(
            metavar="WIRE",
            help="Between nodes: exact, bf16, fp16, int8, fp8 or topk, with options as in"
            " topk:ratio=0.05.",
        ),
    ] = "exact",
    codecs: Annotated[
        bool,
        typer.Option(
            "--codecs",
            help="Time what lossy wires do to one tensor, instead; with --sizes (64MiB) and"
            " --repeat alone.",
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Time all-reduces of many sizes, ours beside gloo in the same run.

    With --lab the nodes have links of their own, and the table says what these allow.
    """
    from gradwire_ops import bench, bench_codecs
    from gradwire_ops.bench_plan import DEFAULT_SIZES, PlanFlags

    flags = PlanFlags(
        sizes=sizes or DEFAULT_SIZES,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        repeat=repeat,
        dtype=dtype,
        op=op,
        schedule=schedule,
        path=path,
        lab=lab,
        rate=rate,
        delay=delay,
        mtu=mtu,
        interfaces=interfaces,
        daemon_cores=daemon_cores,
        workers=workers,
        wire=wire,
    )
    run = bench_codecs.run if codecs else bench.run
    raise typer.Exit(run(flags, as_json=json))


@app.command()
def status(
    daemon: _Daemon = None,
    json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Every second, until Ctrl-C; with --json, a line of JSON each time."
        ),
    ] = False,
) -> None:
    """Ask a daemon for its jobs, ranks, rounds and links."""
    from gradwire_ops import status as command

    raise typer.Exit(command.run(daemon, as_json=json, watching=watch))


@app.command()
def trace(
    daemon: _Daemon = None,
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, max=3600, help="How long.")
    ] = 10.0,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write it.")] = Path(
        "gradwire-trace.json"
    ),
) -> None:
    """Record what a job's daemons and ranks do, on one time line, for ui.perfetto.dev."""
    from gradwire_ops import trace as command

    raise typer.Exit(command.run(daemon, seconds, out))


@app.command()
def drill(  # noqa: PLR0913 - one parameter for each flag
    fault: Annotated[
        str,
        typer.Argument(
            metavar="FAULT",
            help="kill-rank, kill-daemon, stop-daemon, reset-link, partition, slow-link,"
            " corrupt-chunk, or all.",
        ),
    ],
    *,
    repeat: Annotated[int, typer.Option(metavar="N", help="Jobs to disturb.")] = 1,
    seed: Annotated[int, typer.Option(metavar="N", help="Of moments and tensors.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    nodes: Annotated[int, typer.Option(metavar="N", help="Daemons.")] = 2,
    ranks: Annotated[int, typer.Option(metavar="N", help="Ranks of each.")] = 2,
    steps: Annotated[int, typer.Option(metavar="N", help="Of each job.")] = 60,
    size: Annotated[str, typer.Option(metavar="SIZE", help="Gradients of a step.")] = "8MiB",
    seconds: Annotated[
        str, typer.Option(metavar="LEAST,MOST", help="How long what passes lasts.")
    ] = "1,8",
    rate: Annotated[
        str, typer.Option(metavar="RATE", help="Of a link that is slow: 50mbit.")
    ] = "50mbit",
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long a collective may take.")
    ] = 20.0,
    resume: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="How long what is lost is waited for."),
    ] = None,
    lab: Annotated[
        bool,
        typer.Option("--lab", help="Nodes are network namespaces; needs root and iproute2."),
    ] = False,
    daemon: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="unix:/PATH: disturb the job that runs there."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --daemon: do not ask whether it may be.")
    ] = False,
) -> None:
    """Disturb jobs of our own, or one that runs, and see whether they survive with all bits.

    Exit code: 0 if every verdict is the expected one (a killed rank: "failed cleanly", all
    else: "survived"), 1 if not.
    """
    from gradwire_ops import drill as command
    from gradwire_ops import drill_live
    from gradwire_ops.drill_plan import DrillFlags

    if daemon is not None:
        flags_live = drill_live.LiveFlags(fault, daemon, seed, seconds, timeout, sure=yes)
        raise typer.Exit(drill_live.run(flags_live, as_json=json))
    flags = DrillFlags(
        fault=fault,
        repeat=repeat,
        seed=seed,
        nodes=nodes,
        ranks=ranks,
        steps=steps,
        size=size,
        seconds=seconds,
        rate=rate,
        timeout=timeout,
        resume=resume,
        lab=lab,
    )
    raise typer.Exit(command.run(flags, as_json=json))
