from gradwire_proto.v1 import aggregator_pb2 as _aggregator_pb2
from gradwire_proto.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Schedule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCHEDULE_UNSPECIFIED: _ClassVar[Schedule]
    SCHEDULE_RING: _ClassVar[Schedule]
    SCHEDULE_TREE: _ClassVar[Schedule]
    SCHEDULE_DIRECT: _ClassVar[Schedule]
    SCHEDULE_ONE_SHOT: _ClassVar[Schedule]
SCHEDULE_UNSPECIFIED: Schedule
SCHEDULE_RING: Schedule
SCHEDULE_TREE: Schedule
SCHEDULE_DIRECT: Schedule
SCHEDULE_ONE_SHOT: Schedule

class Frame(_message.Message):
    __slots__ = ("hello", "share", "abort", "left", "goodbye", "piece", "skip", "ping", "pong", "note", "tally", "index", "heard", "checksum", "payload")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    TALLY_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    share: Share
    abort: Abort
    left: Left
    goodbye: Goodbye
    piece: Piece
    skip: Skip
    ping: Ping
    pong: Pong
    note: _aggregator_pb2.Note
    tally: Tally
    index: int
    heard: int
    checksum: int
    payload: bytes
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping[str, object]]] = ..., share: _Optional[_Union[Share, _Mapping[str, object]]] = ..., abort: _Optional[_Union[Abort, _Mapping[str, object]]] = ..., left: _Optional[_Union[Left, _Mapping[str, object]]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping[str, object]]] = ..., piece: _Optional[_Union[Piece, _Mapping[str, object]]] = ..., skip: _Optional[_Union[Skip, _Mapping[str, object]]] = ..., ping: _Optional[_Union[Ping, _Mapping[str, object]]] = ..., pong: _Optional[_Union[Pong, _Mapping[str, object]]] = ..., note: _Optional[_Union[_aggregator_pb2.Note, _Mapping[str, object]]] = ..., tally: _Optional[_Union[Tally, _Mapping[str, object]]] = ..., index: _Optional[int] = ..., heard: _Optional[int] = ..., checksum: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "generation", "node", "chunk_bytes", "lane", "lanes", "key", "attempt", "heard", "again", "pulse", "progress", "over", "job")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    PULSE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    generation: str
    node: int
    chunk_bytes: int
    lane: int
    lanes: int
    key: bytes
    attempt: int
    heard: int
    again: bool
    pulse: bool
    progress: _containers.RepeatedCompositeFieldContainer[_aggregator_pb2.Progress]
    over: str
    job: str
    def __init__(self, protocol: _Optional[int] = ..., generation: _Optional[str] = ..., node: _Optional[int] = ..., chunk_bytes: _Optional[int] = ..., lane: _Optional[int] = ..., lanes: _Optional[int] = ..., key: _Optional[bytes] = ..., attempt: _Optional[int] = ..., heard: _Optional[int] = ..., again: _Optional[bool] = ..., pulse: _Optional[bool] = ..., progress: _Optional[_Iterable[_Union[_aggregator_pb2.Progress, _Mapping[str, object]]]] = ..., over: _Optional[str] = ..., job: _Optional[str] = ...) -> None: ...

class Share(_message.Message):
    __slots__ = ("sequence", "chunk", "schedule", "step", "index", "weight", "spec", "number", "after", "size", "nonfinite", "settled_sequence", "settled_chunk", "sent_nanoseconds")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    NONFINITE_FIELD_NUMBER: _ClassVar[int]
    SETTLED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SETTLED_CHUNK_FIELD_NUMBER: _ClassVar[int]
    SENT_NANOSECONDS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    chunk: int
    schedule: Schedule
    step: int
    index: int
    weight: float
    spec: _tensor_pb2.Spec
    number: int
    after: int
    size: int
    nonfinite: _tensor_pb2.NonFinite
    settled_sequence: int
    settled_chunk: int
    sent_nanoseconds: int
    def __init__(self, sequence: _Optional[int] = ..., chunk: _Optional[int] = ..., schedule: _Optional[_Union[Schedule, str]] = ..., step: _Optional[int] = ..., index: _Optional[int] = ..., weight: _Optional[float] = ..., spec: _Optional[_Union[_tensor_pb2.Spec, _Mapping[str, object]]] = ..., number: _Optional[int] = ..., after: _Optional[int] = ..., size: _Optional[int] = ..., nonfinite: _Optional[_Union[_tensor_pb2.NonFinite, _Mapping[str, object]]] = ..., settled_sequence: _Optional[int] = ..., settled_chunk: _Optional[int] = ..., sent_nanoseconds: _Optional[int] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("number", "offset")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    number: int
    offset: int
    def __init__(self, number: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class Skip(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Tally(_message.Message):
    __slots__ = ("again", "settled_sequence", "settled_chunk")
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    SETTLED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SETTLED_CHUNK_FIELD_NUMBER: _ClassVar[int]
    again: bool
    settled_sequence: int
    settled_chunk: int
    def __init__(self, again: _Optional[bool] = ..., settled_sequence: _Optional[int] = ..., settled_chunk: _Optional[int] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("nanoseconds",)
    NANOSECONDS_FIELD_NUMBER: _ClassVar[int]
    nanoseconds: int
    def __init__(self, nanoseconds: _Optional[int] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("asked_nanoseconds", "heard_nanoseconds", "answered_nanoseconds")
    ASKED_NANOSECONDS_FIELD_NUMBER: _ClassVar[int]
    HEARD_NANOSECONDS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_NANOSECONDS_FIELD_NUMBER: _ClassVar[int]
    asked_nanoseconds: int
    heard_nanoseconds: int
    answered_nanoseconds: int
    def __init__(self, asked_nanoseconds: _Optional[int] = ..., heard_nanoseconds: _Optional[int] = ..., answered_nanoseconds: _Optional[int] = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("sequence", "failure")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    failure: _aggregator_pb2.Failure
    def __init__(self, sequence: _Optional[int] = ..., failure: _Optional[_Union[_aggregator_pb2.Failure, _Mapping[str, object]]] = ...) -> None: ...

class Left(_message.Message):
    __slots__ = ("rank", "sequences")
    RANK_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    rank: int
    sequences: int
    def __init__(self, rank: _Optional[int] = ..., sequences: _Optional[int] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
