"""The flags of `gradwire serve`; what it does is in serve, and imported when it is needed."""

from __future__ import annotations

from typing import Annotated

import typer


def serve(  # noqa: PLR0913 - one parameter for each flag
    *,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT,...", help="Where the other daemons connect."),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(metavar="HOST[:PORT],...", help="What they are told instead of --listen."),
    ] = None,
    connections: Annotated[
        str | None,
        typer.Option(metavar="N", help="TCP connections to each other daemon; 0: as fits."),
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="Of a node whose network is slower: 200mbit."),
    ] = None,
    socket: Annotated[
        str | None, typer.Option(metavar="PATH", help="Unix socket for this node's ranks.")
    ] = None,
    metrics_listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Metrics page; empty for none.")
    ] = None,
    metrics_hosts: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="Names by which the page may be asked for."),
    ] = None,
    certs: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Certificates for other hosts: see `certs`."),
    ] = None,
    token_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="Ranks must show tokens: see `tokens`.")
    ] = None,
    insecure: Annotated[
        bool | None,
        typer.Option("--insecure", help="Serve other hosts without authentication."),
    ] = None,
    shm_dir: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Where shared memory lies.")
    ] = None,
    slots: Annotated[
        str | None, typer.Option(metavar="N", help="Chunks a node may have in flight.")
    ] = None,
    chunk_bytes: Annotated[
        str | None, typer.Option(metavar="N", help="Size of a chunk, equal on all daemons.")
    ] = None,
    kernel_threads: Annotated[
        str | None,
        typer.Option(metavar="N", help="Threads that add; 0: none, -1: the spare cores."),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(metavar="N", help="Processes to spread a fast network's work over."),
    ] = None,
    max_jobs: Annotated[
        str | None, typer.Option(metavar="N", help="Generations at a time.")
    ] = None,
    max_calls: Annotated[
        str | None, typer.Option(metavar="N", help="Open calls of one host.")
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(metavar="BYTES", help="Shared memory of all jobs; 0: what there is."),
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(metavar="NAME", help="auto, ring, tree, direct or one-shot.")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="text, json, or auto: text on a terminal only."),
    ] = None,
    trace_file: Annotated[
        str | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Write a trace there in the end; with --workers, worker k writes FILE.k.",
        ),
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="TOML file with any of these settings.")
    ] = None,
) -> None:
    """Run this node's daemon. Each flag may also be a GRADWIRE_* variable or in the file."""
    from gradwire_ops import serve as command

    flags = {
        "listen": listen,
        "advertise": advertise,
        "connections": connections,
        "bandwidth": bandwidth,
        "socket": socket,
        "metrics_listen": metrics_listen,
        "metrics_hosts": metrics_hosts,
        "certs": certs,
        "token_key": token_key,
        "insecure": insecure,
        "shm_dir": shm_dir,
        "slots": slots,
        "chunk_bytes": chunk_bytes,
        "kernel_threads": kernel_threads,
        "workers": workers,
        "max_jobs": max_jobs,
        "max_calls": max_calls,
        "max_memory": max_memory,
        "schedule": schedule,
        "log_level": log_level,
        "log_format": log_format,
        "trace": trace_file,
        "config": config,
    }
    raise typer.Exit(command.run(flags))
