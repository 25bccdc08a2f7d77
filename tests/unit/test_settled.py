"""What is settled is told once, and only ever grows."""

from __future__ import annotations

from gradwire_proto.v1 import peer_pb2
from gradwire_server.round import Key
from gradwire_server.transport.settled import Told


def test_only_what_is_more_is_news_on_either_side() -> None:
    settlement = Told()
    assert not settlement.any
    keys = ((1, 2), (1, 2), (1, 1), (1, 3), (2, 0))
    said = [settlement.settle(Key(*key)) for key in keys]
    assert said == [True, False, False, True, True]
    heard = [settlement.hear(*key) for key in ((0, 0), (3, 1), (3, 1), (2, 9), (4, 0))]
    assert heard == [None, Key(3, 1), None, None, Key(4, 0)]


def test_a_share_or_a_tally_tells_the_newest() -> None:
    settlement, share = Told(), peer_pb2.Share()
    settlement.settle(Key(5, 1))
    settlement.settle(Key(6, 2))
    assert settlement.untold
    settlement.stamp(share)
    assert (share.settled_sequence, share.settled_chunk) == (6, 2)
    assert not settlement.untold
    assert settlement.any
