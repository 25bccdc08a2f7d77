"""One daemon's own needs: memory, processor, queues, and what local ranks exchange with it."""

from boards.parts import HERE, THIRD, WIDE, Board, Panel, Query, rate, series

_MEMORY = (
    Panel(
        "lines",
        "Memory",
        "Resident size of the daemon, with the parts of arenas that it touched.",
        "bytes",
        (Query(series("process_resident_memory_bytes", "instance"), "{{instance}}"),),
    ),
    Panel(
        "lines",
        "Processor",
        "Cores in use. A daemon without workers of its own cannot use much more than one.",
        "short",
        (Query(rate("process_cpu_seconds_total", "instance"), "{{instance}}"),),
    ),
)

_FLIGHT = (
    Panel(
        "lines",
        "In flight",
        "Bytes of rounds under way, and how many there may be. At the limit further chunks wait"
        " for a slot: that is back-pressure, and costs time only if links are idle meanwhile.",
        "bytes",
        (
            Query(series("gradwire_in_flight_bytes", "instance"), "{{instance}}"),
            Query(series("gradwire_in_flight_limit_bytes", "instance"), "limit, {{instance}}"),
        ),
    ),
    Panel(
        "lines",
        "Waiting to be written",
        "Payload in the queues of all links of a node.",
        "bytes",
        (Query(series("gradwire_link_queued_bytes", "instance"), "{{instance}}"),),
    ),
)

_LOCAL = (
    Panel(
        "lines",
        "Within the node",
        "Bytes per second that local ranks hand in and get back.",
        "Bps",
        (
            Query(
                rate("gradwire_local_bytes_total", "instance, direction"),
                "{{direction}} {{instance}}",
            ),
        ),
        width=THIRD,
    ),
    Panel(
        "lines",
        "Files open",
        "Of those that the process may have open. Each connection is one.",
        "percentunit",
        (
            Query(
                f"max by (instance) (process_open_fds{{{HERE}}} / process_max_fds{{{HERE}}})",
                "{{instance}}",
            ),
        ),
        width=THIRD,
    ),
    Panel(
        "lines",
        "Garbage collections",
        "Of Python's, per second, by generation.",
        "ops",
        (
            Query(
                rate("python_gc_collections_total", "instance, generation"),
                "{{instance}}, generation {{generation}}",
            ),
        ),
        width=THIRD,
    ),
)

_DAEMONS = (
    Panel(
        "table",
        "Daemons",
        "Version of each, and the seconds since it started. One that is young has been"
        " restarted.",
        "s",
        (
            Query(
                "max by (instance, version, python)"
                f" ((time() - process_start_time_seconds{{{HERE}}})"
                " * on (instance) group_left (version, python)"
                f" max by (instance, version, python) (gradwire_build_info{{{HERE}}}))",
                "",
            ),
        ),
        width=WIDE,
    ),
)

_CERTIFICATES = (
    Panel(
        "table",
        "Certificates",
        "How long those that daemons show to others are still valid. None: there is no TLS.",
        "s",
        (
            Query(
                "min by (instance)"
                f" (gradwire_certificate_expiry_timestamp_seconds{{{HERE}}}) - time()",
                "",
            ),
        ),
        width=WIDE,
    ),
)

BOARD = Board(
    uid="gradwire-node",
    title="Gradwire: nodes",
    description="Memory, processor and queues of each daemon.",
    panels=(*_MEMORY, *_FLIGHT, *_LOCAL, *_DAEMONS, *_CERTIFICATES),
)
