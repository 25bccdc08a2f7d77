"""The links between nodes: which is slow, far, full or broken."""

from boards.parts import THIRD, WIDE, Board, Panel, Query, grown, rate, series

_LINK = "instance, peer"
_NAME = "{{instance}} to {{peer}}"
_COMING = "{{peer}} to {{instance}}"

_MATRICES = (
    Panel(
        "matrix",
        "Bandwidth",
        "Bytes per second that large shares reached lately while on their way. A row is the"
        " daemon that measured, under the address of its metrics; a column its peer. The red"
        " one is slow.",
        "Bps",
        (Query(series("gradwire_link_bandwidth_bytes_per_second", _LINK), ""),),
        more_is_better=True,
    ),
    Panel(
        "matrix",
        "Round trip",
        "Seconds to the peer and back, by the pulse. Under load it has the link's own queue"
        " in it.",
        "s",
        (Query(series("gradwire_link_round_trip_seconds", _LINK, "max"), ""),),
    ),
)

_STATE = (
    Panel(
        "states",
        "Links",
        "Whether there is a connection to the peer. A link that comes back within the job's"
        " resume time costs that time, and nothing else.",
        "none",
        (Query(series("gradwire_link_up", _LINK, "min"), _NAME),),
        width=WIDE,
    ),
)

_COURSE = (
    Panel(
        "lines",
        "Bandwidth over time",
        "A link that falls behind its own past is worth a look, even where others are slower.",
        "Bps",
        (Query(series("gradwire_link_bandwidth_bytes_per_second", _LINK), _COMING),),
    ),
    Panel(
        "lines",
        "Round trip over time",
        "By the pulse; one value for each direction, since each daemon measures by itself.",
        "s",
        (Query(series("gradwire_link_round_trip_seconds", _LINK, "max"), _NAME),),
    ),
)

_BYTES = (
    Panel(
        "lines",
        "On the wire",
        "Bytes per second exchanged with each peer, as encoded, with all that frames carry.",
        "Bps",
        (
            Query(
                rate("gradwire_peer_bytes_total", f"{_LINK}, direction"),
                "{{instance}} {{direction}} {{peer}}",
            ),
        ),
    ),
    Panel(
        "lines",
        "Before encoding",
        "The same in bytes of tensors: what an exact wire would have had to carry.",
        "Bps",
        (
            Query(
                rate("gradwire_peer_payload_bytes_total", f"{_LINK}, direction"),
                "{{instance}} {{direction}} {{peer}}",
            ),
        ),
    ),
)

_TROUBLE = (
    Panel(
        "lines",
        "Waiting to be written",
        "Payload in the queue of each link. A queue that stays is a link that is the limit,"
        " or a peer that does not read.",
        "bytes",
        (Query(series("gradwire_link_queued_bytes", _LINK), _NAME),),
        width=THIRD,
    ),
    Panel(
        "lines",
        "Damaged, and sent again",
        "Frames per second whose checksum failed. All are made good; the network, a card or a"
        " memory module is not well.",
        "ops",
        (
            Query(
                rate("gradwire_frames_damaged_total", _LINK),
                "damaged, {{peer}} to {{instance}}",
            ),
            Query(rate("gradwire_frames_resent_total", _LINK), "sent again, " + _NAME),
        ),
        width=THIRD,
    ),
    Panel(
        "lines",
        "Opened again",
        "Streams that broke and were opened again, within five minutes.",
        "short",
        (
            Query(
                grown("gradwire_link_reopened_total", _LINK),
                _NAME,
            ),
        ),
        width=THIRD,
    ),
)

BOARD = Board(
    uid="gradwire-links",
    title="Gradwire: links",
    description="Which link is slow, far, full or broken.",
    panels=(*_MATRICES, *_STATE, *_COURSE, *_BYTES, *_TROUBLE),
)
