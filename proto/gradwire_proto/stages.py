"""The stages of a round on one node: where its time goes.

A round is the reduction of one chunk. On its node it begins when the first local rank has
handed the collective in (a later chunk of it: when the chunk is begun), and is over when the
first local rank has its result. At every moment between, it is in one of these stages.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

Stage: TypeAlias = Literal[
    "copy_in",
    "wait_local",
    "local_sum",
    "queue",
    "encode",
    "wire",
    "wait_peers",
    "decode",
    "copy_out",
]

STAGES: tuple[Stage, ...] = get_args(Stage)
"""In the order in which a round passes them, though some are passed many times."""

MEANINGS: dict[Stage, str] = {
    "copy_in": "the first local rank puts its part into shared memory",
    "wait_local": "for a local rank that has not handed its part in",
    "local_sum": "the other local ranks add theirs",
    "queue": "for a processor, here, or for earlier rounds",
    "encode": "shares are made smaller for the wire",
    "wire": "shares are on their way from other nodes",
    "wait_peers": "for other nodes, which have not sent their shares yet",
    "decode": "shares that came are added and stored",
    "copy_out": "the first local rank reads the result",
}
