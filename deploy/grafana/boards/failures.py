"""What went wrong, and who holds the others up."""

from boards.parts import HERE, Board, Panel, Query, figure, grown, rate, series

_RANK = "instance, rank"

_FIGURES = (
    figure(
        "Alerts",
        "Alerts that fire now; deploy/RUNBOOK.md has a section for each.",
        'count(ALERTS{alertname=~"Gradwire.+", alertstate="firing"}) or vector(0)',
        alarm=1,
    ),
    figure(
        "Daemons that do not answer",
        "Daemons from which Prometheus gets no metrics.",
        f'count(up{{job="gradwire", {HERE}}} == 0) or vector(0)',
        alarm=1,
    ),
    figure(
        "Links down",
        "Links that a job needs and has not, counted from both ends.",
        f"count({series('gradwire_link_up', 'instance, peer', 'min')} == 0) or vector(0)",
        alarm=1,
    ),
    figure(
        "Errors, last hour",
        "Failures of any kind within an hour.",
        f"sum(increase(gradwire_errors_total{{{HERE}}}[1h])) or vector(0)",
        alarm=1,
    ),
)

_WHO = (
    Panel(
        "lines",
        "Stragglers",
        "Part of the time, lately, in which others waited for a rank: 0 to 1. The rank's own"
        " node knows best, so the highest counts.",
        "percentunit",
        (Query(series("gradwire_rank_straggling", _RANK, "max"), "rank {{rank}}"),),
        most=1,
    ),
    Panel(
        "lines",
        "Last of its node",
        "How often a second each rank was the last of its node to hand in a collective. In a"
        " fair job all are it alike.",
        "ops",
        (Query(rate("gradwire_rank_last_arrivals_total", _RANK), "rank {{rank}}"),),
    ),
    Panel(
        "lines",
        "Missing",
        "Local ranks of jobs that have not joined, and collectives that wait longer than the"
        " warning period.",
        "short",
        (
            Query(series("gradwire_ranks_missing", "instance"), "ranks, {{instance}}"),
            Query(
                series("gradwire_stalled_rounds", "instance"), "stalled rounds, {{instance}}"
            ),
        ),
    ),
)

_WHAT = (
    Panel(
        "lines",
        "Errors",
        "Failures by kind, since the daemon started. A step up is an error; the log has its"
        " text.",
        "short",
        (Query(series("gradwire_errors_total", "instance, kind"), "{{kind}}, {{instance}}"),),
    ),
    Panel(
        "lines",
        "Taken up again",
        "Generations that went on after a daemon or a network was gone, and streams that were"
        " opened again, within five minutes.",
        "short",
        (
            Query(
                grown("gradwire_resumes_total", "instance"),
                "resumed, {{instance}}",
            ),
            Query(
                grown("gradwire_link_reopened_total", "instance, peer"),
                "opened again, {{instance}} to {{peer}}",
            ),
        ),
    ),
    Panel(
        "lines",
        "Damaged",
        "Frames that came damaged, and residuals of lossy wires that nothing used, within five"
        " minutes.",
        "short",
        (
            Query(
                grown("gradwire_frames_damaged_total", "instance, peer"),
                "damaged, {{peer}} to {{instance}}",
            ),
            Query(
                grown("gradwire_frames_resent_total", "instance, peer"),
                "sent again, {{instance}} to {{peer}}",
            ),
            Query(
                grown("gradwire_residuals_dropped_total", "instance"),
                "residuals dropped, {{instance}}",
            ),
        ),
    ),
)

BOARD = Board(
    uid="gradwire-failures",
    title="Gradwire: failures",
    description="What went wrong, and who holds the others up.",
    panels=(*_FIGURES, *_WHO, *_WHAT),
)
