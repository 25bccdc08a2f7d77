"""The job at a glance: how long a step takes, how much of it is communication, and why."""

from boards.parts import HALF, THIRD, Board, Panel, Query, figure, rate, series

_BUCKETS = rate("gradwire_round_seconds_bucket", "le")

_FIGURES = (
    figure(
        "Ranks joined",
        "Ranks that hold a seat at these daemons.",
        f"sum({series('gradwire_ranks_joined', 'instance')})",
    ),
    figure(
        "Ranks missing",
        "Local ranks of jobs here that have not joined: nothing begins without them.",
        f"sum({series('gradwire_ranks_missing', 'instance')})",
        alarm=1,
    ),
    figure(
        "Jobs",
        "Jobs with a rank at any of these daemons; one that spans several daemons counts once.",
        f"max({series('gradwire_jobs', 'instance', 'max')})",
    ),
    figure(
        "Stalled rounds",
        "Collectives that wait longer than the warning period. The daemon's log names whom"
        " for.",
        f"sum({series('gradwire_stalled_rounds', 'instance')})",
        alarm=1,
    ),
)

_STEPS = (
    Panel(
        "lines",
        "Step time",
        "Seconds for a training step of each rank. All ranks of one job have the same, since"
        " each step waits for all of them.",
        "s",
        (
            Query(
                f"1 / ({rate('gradwire_rank_steps_total', 'instance, rank', 'max')} > 0)",
                "rank {{rank}}",
            ),
        ),
    ),
    Panel(
        "lines",
        "Communication share",
        "Part of the time in which a rank has a collective under way. What overlaps with the"
        " backward pass costs nothing; near 1 the job waits for the network, or for a rank.",
        "percentunit",
        (
            Query(
                rate("gradwire_rank_communicating_seconds_total", "instance, rank", "max"),
                "rank {{rank}}",
            ),
        ),
        most=1,
    ),
)

_LEDGER = (
    Panel(
        "area",
        "Where the time goes",
        "Seconds that rounds spend in each stage, in every second. Rounds run side by side,"
        " so that the sum may be more than 1. wait_local: a rank of this node is late;"
        " wait_peers: another node is; wire: the link; queue: the processor.",
        "s",
        (Query(rate("gradwire_step_seconds_total", "stage"), "{{stage}}"),),
        width=16,
    ),
    Panel(
        "lines",
        "Where the time goes, in parts",
        "Part that each stage has in all of the rounds' time. The parts add up to 1.",
        "percentunit",
        (
            Query(
                # Without the empty list, what follows would be taken for labels.
                f"{rate('gradwire_step_seconds_total', 'stage')}"
                " / ignoring (stage) group_left ()"
                f" ({rate('gradwire_ledger_seconds_total', '')} > 0)",
                "{{stage}}",
            ),
        ),
        width=THIRD,
        most=1,
    ),
)

_ROUNDS = (
    Panel(
        "lines",
        "Rounds",
        "Chunks reduced per second, by the schedule between the nodes.",
        "ops",
        (Query(rate("gradwire_rounds_total", "schedule"), "{{schedule}}"),),
        width=HALF,
    ),
    Panel(
        "lines",
        "Round time",
        "From the last local contribution of a chunk to its result.",
        "s",
        (
            Query(f"histogram_quantile(0.5, {_BUCKETS})", "median"),
            Query(f"histogram_quantile(0.99, {_BUCKETS})", "99 %"),
            Query(
                f"{rate('gradwire_round_seconds_sum', '')}"
                f" / ({rate('gradwire_round_seconds_count', '')} > 0)",
                "mean",
            ),
        ),
    ),
)

_WIRES = (
    Panel(
        "lines",
        "Use of the links",
        "What each link carries, of what large shares reached on it lately. Near 1 the link"
        " is the limit: a lossy wire or a faster link will help. Far from it neither will.",
        "percentunit",
        (
            Query(
                'sum by (instance, peer) (rate(gradwire_peer_bytes_total{instance=~"$instance",'
                ' direction="received"}[$__rate_interval])) / '
                f"({series('gradwire_link_bandwidth_bytes_per_second', 'instance, peer')} > 0)",
                "{{peer}} to {{instance}}",
            ),
        ),
        width=THIRD,
    ),
    Panel(
        "lines",
        "What wires save",
        "Bytes before encoding, over bytes after it: 2 means that half of them travel.",
        "short",
        (
            Query(
                f"{rate('gradwire_codec_raw_bytes_total', 'wire')}"
                f" / ({rate('gradwire_codec_encoded_bytes_total', 'wire')} > 0)",
                "{{wire}}",
            ),
        ),
        width=THIRD,
    ),
    Panel(
        "lines",
        "What wires lose",
        "Size of what is lost over the size of what was sent, of samples. Error feedback"
        " makes it good in later steps.",
        "percentunit",
        (Query(series("gradwire_codec_error_ratio", "wire", "max"), "{{wire}}"),),
        width=THIRD,
    ),
)

BOARD = Board(
    uid="gradwire",
    title="Gradwire: jobs",
    description="How long a step takes, how much of it is communication, and why.",
    panels=(*_FIGURES, *_STEPS, *_LEDGER, *_ROUNDS, *_WIRES),
)
