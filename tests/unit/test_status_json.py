from __future__ import annotations

import json
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from gradwire_ops import status_view
from gradwire_proto.status_json import to_dict
from gradwire_proto.v1 import aggregator_pb2 as pb

MANY = 1 << 60


def answer() -> pb.StatusResponse:
    return pb.StatusResponse(
        version="0.1.0",
        node_id="n",
        uptime=Duration(seconds=2, nanos=500_000_000),
        jobs=[
            pb.JobStatus(
                generation="g",
                world_size=2,
                nodes=[pb.Node(id="n", ranks=[0]), pb.Node(id="m", ranks=[1])],
                ranks=[pb.RankStatus(rank=0, path="stream", sequences=3)],
                links=[pb.LinkStatus(node=1, connected=True, bytes_sent=MANY)],
                rounds_done=MANY,
            )
        ],
        events=[
            pb.Event(time=Timestamp(seconds=3, nanos=500_000_000), text="late", round=0),
            pb.Event(text="joined", ranks=[1]),
        ],
    )


def test_numbers_are_numbers_however_large() -> None:
    (job,) = json.loads(json.dumps(to_dict(answer())))["jobs"]
    assert job["rounds_done"] == job["links"][0]["bytes_sent"] == MANY


def test_the_time_up_is_in_seconds() -> None:
    assert to_dict(answer())["uptime_seconds"] == 2.5


def test_an_event_of_round_0_is_not_one_of_none() -> None:
    late, joined = json.loads(json.dumps(to_dict(answer())))["events"]
    assert (late["time"], late["round"]) == (3.5, 0)
    assert (joined["round"], joined["ranks"]) == (None, [1])


def test_a_node_that_is_silent_is_said_to_be_so() -> None:
    link = pb.LinkStatus(node=1, connected=True)
    for seconds, words in ((1, "connected"), (3, "connected, silent for 3 s")):
        link.silent.FromSeconds(seconds)
        assert status_view.state(link) == words


def said_as(field: Any) -> str:  # noqa: ANN401 - of one of protobuf's implementations
    is_duration = field.message_type and field.message_type.name == "Duration"
    return f"{field.name}_seconds" if is_duration else field.name


def test_every_field_of_the_messages_is_there() -> None:
    written = to_dict(answer())
    (job,) = json.loads(json.dumps(written))["jobs"]
    assert job.keys() == {field.name for field in pb.JobStatus.DESCRIPTOR.fields}
    for name, message in (
        ("nodes", pb.Node),
        ("ranks", pb.RankStatus),
        ("links", pb.LinkStatus),
    ):
        fields = {said_as(field) for field in message.DESCRIPTOR.fields}
        assert job[name][0].keys() == fields
