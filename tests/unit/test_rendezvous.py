"""How ranks find one another, over a store in this process; no daemon is asked."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

import pytest
import torch.distributed as dist

from gradwire import ConnectError
from gradwire._rendezvous import Card, Meeting, Picture, _attempts, check, draw, find_store
from gradwire_proto import PROTOCOL
from gradwire_proto.v1 import aggregator_pb2 as pb

CARD = Card("token", PROTOCOL, "0.1", "a", "127.0.0.1:1", "alpha", "net-1", False, 4096)
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def daemon(node: str, **fields: object) -> pb.DescribeResponse:
    response = pb.DescribeResponse(
        protocol=PROTOCOL,
        version="0.1",
        node_id=node,
        address=f"127.0.0.1:{ord(node)}",
        chunk_bytes=4096,
        host="alpha",
        network="net-1",
    )
    for name, value in fields.items():
        setattr(response, name, value)
    return response


def meet(
    daemons: list[pb.DescribeResponse], store: dist.Store | None = None
) -> list[Picture | ConnectError]:
    """What each rank of a job learns; rank i sits at daemons[i]."""
    shared = store or dist.HashStore()
    world = len(daemons)

    def one(rank: int) -> Picture | ConnectError:
        try:
            return Meeting(shared, rank, world, 5.0).agree(daemons[rank])
        except ConnectError as error:
            return error

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(one, range(world)))


def picture(found: Picture | ConnectError) -> Picture:
    assert isinstance(found, Picture), found
    return found


def test_all_addresses_of_a_daemon_are_in_the_picture() -> None:
    both = ["10.77.0.1:1", "10.78.0.1:1"]
    first, _ = draw([replace(CARD, addresses=both), replace(CARD, node_id="b")])["workers"][0]
    assert first["addresses"] == both


def test_a_daemon_is_closed_to_other_hosts_where_one_of_its_addresses_is() -> None:
    here = replace(CARD, insecure=True, address="10.0.0.1:1", network="net-2")
    there = replace(CARD, insecure=True, address="10.0.0.2:1")
    assert not check([here, replace(there, addresses=["10.0.0.2:1", "10.1.0.2:1"])])
    error = check([here, replace(there, addresses=["10.0.0.2:1", "127.0.0.1:1"])])
    assert "127.0.0.1:1, for this host only" in error


def test_all_ranks_learn_the_same_picture_and_their_own_place_in_it() -> None:
    found = [picture(each) for each in meet([daemon("b"), daemon("a"), daemon("b")])]
    assert len({each.generation for each in found}) == 1
    assert all(each.nodes == found[0].nodes for each in found)
    assert [list(node.ranks) for node in found[0].nodes] == [[0, 2], [1]]
    assert [node.id for node in found[0].nodes] == ["b", "a"]
    assert [each.node for each in found] == [0, 1, 0]


@pytest.mark.case("M25")
def test_a_job_of_one_rank_meets_itself() -> None:
    (found,) = meet([daemon("a")])
    assert [list(node.ranks) for node in picture(found).nodes] == [[0]]


def test_meeting_again_in_the_same_store_is_a_new_generation() -> None:
    store = dist.HashStore()
    first, second = (picture(meet([daemon("a")], store)[0]).generation for _ in range(2))
    assert first != second


@pytest.mark.case("R28")
def test_a_mistake_is_told_to_every_rank() -> None:
    found = meet([daemon("a"), daemon("b", chunk_bytes=8192)])
    for each in found:
        assert isinstance(each, ConnectError)
        assert "differ in chunk_bytes: 4096 (rank 0, gradwire 0.1), 8192 (rank 1" in str(each)


@pytest.mark.parametrize("seconds", [0.05, 0.0004])
def test_a_rank_that_never_comes_is_named(seconds: float) -> None:
    """To torch's store a wait of no whole millisecond would be one without end."""
    text = f"the ranks 1, 2 of 3 did not connect within {seconds:g} s"
    with pytest.raises(ConnectError, match=text):
        Meeting(dist.HashStore(), 0, 3, seconds).agree(daemon("a"))


def test_a_second_process_of_the_same_rank_hears_that_its_rank_is_taken() -> None:
    meeting = Meeting(dist.HashStore(), 1, 2, 0.5)
    meeting.publish("picture", draw([CARD, CARD]))  # their tokens are of other processes
    with pytest.raises(ConnectError, match="with another process as rank 1"):
        meeting.agree(daemon("a"))


def test_only_one_rank_is_the_first_to_ask() -> None:
    store = dist.HashStore()
    asked = [Meeting(store, rank, 3, 1.0).first("embedded") for rank in range(3)]
    assert sorted(asked) == [False, False, True]


def test_ranks_on_one_host_need_no_insecure_daemon() -> None:
    assert check([CARD, replace(CARD, node_id="b")]) == ""


def test_ranks_on_several_hosts_do_and_both_remedies_are_named() -> None:
    other = replace(CARD, network="net-2", host="beta")
    open_card = replace(CARD, insecure=True, address="10.0.0.1:1")
    mistake = check([open_card, other])
    for words in ("several hosts", "daemon of beta", "--insecure", "GRADWIRE_INSECURE=1"):
        assert words in mistake
    open_other = replace(other, insecure=True, address="10.0.0.2:1")
    assert check([open_card, open_other]) == ""
    on_loopback = check([open_card, replace(open_other, address="127.0.0.1:1")])
    assert "daemon of beta" in on_loopback


def test_certificates_open_a_daemon_to_other_hosts_where_all_have_them() -> None:
    here = replace(CARD, certified=True, address="10.0.0.1:1")
    there = replace(here, network="net-2", host="beta", address="10.0.0.2:1")
    assert check([here, there]) == ""
    plain = replace(there, certified=False)
    for other in (plain, replace(plain, insecure=True)):
        mistake = check([here, other])
        for words in (f"daemon of {here.host} takes only callers", "that of beta", "--certs"):
            assert words in mistake


def test_daemons_of_different_protocols_are_told_apart_by_rank_and_version() -> None:
    mistake = check([CARD, replace(CARD, protocol=PROTOCOL + 1, version="0.9")])
    both = f"{PROTOCOL} (rank 0, gradwire 0.1), {PROTOCOL + 1} (rank 1, gradwire 0.9)"
    assert f"differ in protocol: {both}; install one release everywhere" in mistake


def test_a_rank_and_a_daemon_of_different_protocols_are_named_with_both_versions() -> None:
    rank = replace(CARD, rank_protocol=PROTOCOL + 1, rank_version="0.9")
    assert check([CARD, rank]) == (
        f"rank 1 is gradwire 0.9 and speaks protocol {PROTOCOL + 1}, its daemon on alpha is"
        f" gradwire 0.1 and speaks {PROTOCOL}; install one release everywhere"
    )


@pytest.mark.parametrize(
    "cards",
    [
        pytest.param([replace(CARD, rank_protocol=1, protocol=2)], id="protocols"),
        pytest.param([replace(CARD, network="n"), CARD], id="closed"),
        pytest.param([replace(CARD, certified=True), CARD], id="certificates"),
    ],
)
def test_no_host_name_steers_a_terminal_in_a_mistake(cards: list[Card]) -> None:
    mistake = check([replace(card, host="al\x1b[31m\npha") for card in cards])
    assert "al\ufffd[31m\ufffdpha" in mistake
    assert mistake.isprintable()


def test_a_card_of_another_release_may_say_more() -> None:
    text = json.dumps({**asdict(CARD), "colour": "red"}).encode()
    assert Card.read(text) == CARD


def test_nodes_are_in_the_order_of_their_lowest_ranks() -> None:
    nodes = draw([replace(CARD, node_id=node) for node in "cabcb"])["workers"][0]
    assert [(node["id"], node["ranks"]) for node in nodes] == [
        ("c", [0, 3]),
        ("a", [1]),
        ("b", [2, 4]),
    ]


@pytest.mark.parametrize(("rank", "world_size"), [(None, 2), (0, None)])
def test_a_store_comes_with_rank_and_world_size(
    rank: int | None, world_size: int | None
) -> None:
    with pytest.raises(ConnectError, match=r"needs rank=\.\.\. and world_size"):
        find_store(dist.HashStore(), rank, world_size)


def test_what_is_missing_from_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ConnectError, match="WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set"):
        find_store(None, None, None)


def test_the_job_has_as_many_workers_as_the_node_with_the_fewest() -> None:
    three = replace(CARD, workers=[["127.0.0.1:2"], ["127.0.0.1:3"]])
    two = replace(CARD, node_id="b", address="127.0.0.1:8", workers=[["127.0.0.1:9"]])
    workers = draw([three, two])["workers"]
    assert [[node["address"] for node in nodes] for nodes in workers] == [
        ["127.0.0.1:1", "127.0.0.1:8"],
        ["127.0.0.1:2", "127.0.0.1:9"],
    ]
    assert [node["ranks"] for nodes in workers for node in nodes] == [[0], [1]] * 2


@pytest.mark.parametrize("shared", [True, False])
def test_a_job_that_was_started_again_forms_anew_over_one_store_or_another(
    monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """Each agent counts for itself; where the store is new, that must not matter."""
    store = dist.HashStore()
    first = meet([daemon("a"), daemon("b")], store)
    _attempts.clear()  # as in other processes
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    again = meet([daemon("a"), daemon("b")], store if shared else dist.HashStore())
    generations = {each.generation for each in [*first, *again] if isinstance(each, Picture)}
    assert len(generations) == 2
    assert not any(isinstance(each, ConnectError) for each in [*first, *again])


def test_of_a_job_that_was_started_again_embedded_daemons_start_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = dist.HashStore()
    assert Meeting(store, 0, 1, 1.0).first("embedded")
    _attempts.clear()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert Meeting(store, 0, 1, 1.0).first("embedded")
