import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from gradwire_proto.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("protocol", "version", "node_id", "address", "insecure", "chunk_bytes", "host", "network", "addresses", "bandwidth", "workers", "certified")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INSECURE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    CERTIFIED_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    node_id: str
    address: str
    insecure: bool
    chunk_bytes: int
    host: str
    network: str
    addresses: _containers.RepeatedScalarFieldContainer[str]
    bandwidth: int
    workers: _containers.RepeatedCompositeFieldContainer[Worker]
    certified: bool
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., node_id: _Optional[str] = ..., address: _Optional[str] = ..., insecure: _Optional[bool] = ..., chunk_bytes: _Optional[int] = ..., host: _Optional[str] = ..., network: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ..., bandwidth: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[Worker, _Mapping[str, object]]]] = ..., certified: _Optional[bool] = ...) -> None: ...

class Worker(_message.Message):
    __slots__ = ("socket", "addresses")
    SOCKET_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    socket: str
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, socket: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("id", "address", "host", "ranks", "addresses", "bandwidth")
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    id: str
    address: str
    host: str
    ranks: _containers.RepeatedScalarFieldContainer[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    bandwidth: int
    def __init__(self, id: _Optional[str] = ..., address: _Optional[str] = ..., host: _Optional[str] = ..., ranks: _Optional[_Iterable[int]] = ..., addresses: _Optional[_Iterable[str]] = ..., bandwidth: _Optional[int] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("protocol", "generation", "rank", "world_size", "nodes", "node", "host", "pid", "shared_memory", "timeout", "warn_after", "connect_timeout", "urgent", "version", "attempt", "progress", "resume", "first_timeout", "job")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    WARN_AFTER_FIELD_NUMBER: _ClassVar[int]
    CONNECT_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    URGENT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    FIRST_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    generation: str
    rank: int
    world_size: int
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    node: int
    host: str
    pid: int
    shared_memory: bool
    timeout: _duration_pb2.Duration
    warn_after: _duration_pb2.Duration
    connect_timeout: _duration_pb2.Duration
    urgent: bool
    version: str
    attempt: int
    progress: Progress
    resume: _duration_pb2.Duration
    first_timeout: _duration_pb2.Duration
    job: str
    def __init__(self, protocol: _Optional[int] = ..., generation: _Optional[str] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping[str, object]]]] = ..., node: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., shared_memory: _Optional[bool] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping[str, object]]] = ..., warn_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping[str, object]]] = ..., connect_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping[str, object]]] = ..., urgent: _Optional[bool] = ..., version: _Optional[str] = ..., attempt: _Optional[int] = ..., progress: _Optional[_Union[Progress, _Mapping[str, object]]] = ..., resume: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping[str, object]]] = ..., first_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping[str, object]]] = ..., job: _Optional[str] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("rank", "sequence", "chunk", "lapses")
    RANK_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    LAPSES_FIELD_NUMBER: _ClassVar[int]
    rank: int
    sequence: int
    chunk: int
    lapses: _containers.RepeatedCompositeFieldContainer[Lapse]
    def __init__(self, rank: _Optional[int] = ..., sequence: _Optional[int] = ..., chunk: _Optional[int] = ..., lapses: _Optional[_Iterable[_Union[Lapse, _Mapping[str, object]]]] = ...) -> None: ...

class Lapse(_message.Message):
    __slots__ = ("sequence", "failure")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    failure: Failure
    def __init__(self, sequence: _Optional[int] = ..., failure: _Optional[_Union[Failure, _Mapping[str, object]]] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("seat", "chunk_bytes", "slots", "arena", "attempt", "progress")
    SEAT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    ARENA_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    seat: str
    chunk_bytes: int
    slots: int
    arena: Arena
    attempt: int
    progress: _containers.RepeatedCompositeFieldContainer[Progress]
    def __init__(self, seat: _Optional[str] = ..., chunk_bytes: _Optional[int] = ..., slots: _Optional[int] = ..., arena: _Optional[_Union[Arena, _Mapping[str, object]]] = ..., attempt: _Optional[int] = ..., progress: _Optional[_Iterable[_Union[Progress, _Mapping[str, object]]]] = ...) -> None: ...

class Arena(_message.Message):
    __slots__ = ("path", "nonce", "ranks", "local_rank", "doorbell", "keeper")
    PATH_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    DOORBELL_FIELD_NUMBER: _ClassVar[int]
    KEEPER_FIELD_NUMBER: _ClassVar[int]
    path: str
    nonce: bytes
    ranks: int
    local_rank: int
    doorbell: str
    keeper: str
    def __init__(self, path: _Optional[str] = ..., nonce: _Optional[bytes] = ..., ranks: _Optional[int] = ..., local_rank: _Optional[int] = ..., doorbell: _Optional[str] = ..., keeper: _Optional[str] = ...) -> None: ...

class Ring(_message.Message):
    __slots__ = ("seat", "ready", "beyond", "disagreement", "weightless")
    SEAT_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    BEYOND_FIELD_NUMBER: _ClassVar[int]
    DISAGREEMENT_FIELD_NUMBER: _ClassVar[int]
    WEIGHTLESS_FIELD_NUMBER: _ClassVar[int]
    seat: str
    ready: int
    beyond: int
    disagreement: Disagreement
    weightless: int
    def __init__(self, seat: _Optional[str] = ..., ready: _Optional[int] = ..., beyond: _Optional[int] = ..., disagreement: _Optional[_Union[Disagreement, _Mapping[str, object]]] = ..., weightless: _Optional[int] = ...) -> None: ...

class Disagreement(_message.Message):
    __slots__ = ("sequence", "mine", "theirs")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MINE_FIELD_NUMBER: _ClassVar[int]
    THEIRS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    mine: _tensor_pb2.Spec
    theirs: _tensor_pb2.Spec
    def __init__(self, sequence: _Optional[int] = ..., mine: _Optional[_Union[_tensor_pb2.Spec, _Mapping[str, object]]] = ..., theirs: _Optional[_Union[_tensor_pb2.Spec, _Mapping[str, object]]] = ...) -> None: ...

class ReduceRequest(_message.Message):
    __slots__ = ("seat", "sequence", "chunk", "spec", "weight", "settled_sequence", "settled_chunk", "steps", "communicating_nanoseconds", "payload")
    SEAT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SETTLED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SETTLED_CHUNK_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATING_NANOSECONDS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    seat: str
    sequence: int
    chunk: int
    spec: _tensor_pb2.Spec
    weight: float
    settled_sequence: int
    settled_chunk: int
    steps: int
    communicating_nanoseconds: int
    payload: bytes
    def __init__(self, seat: _Optional[str] = ..., sequence: _Optional[int] = ..., chunk: _Optional[int] = ..., spec: _Optional[_Union[_tensor_pb2.Spec, _Mapping[str, object]]] = ..., weight: _Optional[float] = ..., settled_sequence: _Optional[int] = ..., settled_chunk: _Optional[int] = ..., steps: _Optional[int] = ..., communicating_nanoseconds: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class ReduceResponse(_message.Message):
    __slots__ = ("sequence", "chunk", "failure", "nonfinite", "rejoin", "payload")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    NONFINITE_FIELD_NUMBER: _ClassVar[int]
    REJOIN_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    chunk: int
    failure: Failure
    nonfinite: _tensor_pb2.NonFinite
    rejoin: int
    payload: bytes
    def __init__(self, sequence: _Optional[int] = ..., chunk: _Optional[int] = ..., failure: _Optional[_Union[Failure, _Mapping[str, object]]] = ..., nonfinite: _Optional[_Union[_tensor_pb2.NonFinite, _Mapping[str, object]]] = ..., rejoin: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class PostRequest(_message.Message):
    __slots__ = ("seat", "note", "payload")
    SEAT_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    seat: str
    note: Note
    payload: bytes
    def __init__(self, seat: _Optional[str] = ..., note: _Optional[_Union[Note, _Mapping[str, object]]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class PostResponse(_message.Message):
    __slots__ = ("note", "payload")
    NOTE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    note: Note
    payload: bytes
    def __init__(self, note: _Optional[_Union[Note, _Mapping[str, object]]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class Note(_message.Message):
    __slots__ = ("source", "target", "number", "offer", "page", "receipt", "withdrawal", "refusal", "departure")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWAL_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    DEPARTURE_FIELD_NUMBER: _ClassVar[int]
    source: int
    target: int
    number: int
    offer: Offer
    page: Page
    receipt: Receipt
    withdrawal: Withdrawal
    refusal: Refusal
    departure: Departure
    def __init__(self, source: _Optional[int] = ..., target: _Optional[int] = ..., number: _Optional[int] = ..., offer: _Optional[_Union[Offer, _Mapping[str, object]]] = ..., page: _Optional[_Union[Page, _Mapping[str, object]]] = ..., receipt: _Optional[_Union[Receipt, _Mapping[str, object]]] = ..., withdrawal: _Optional[_Union[Withdrawal, _Mapping[str, object]]] = ..., refusal: _Optional[_Union[Refusal, _Mapping[str, object]]] = ..., departure: _Optional[_Union[Departure, _Mapping[str, object]]] = ...) -> None: ...

class Offer(_message.Message):
    __slots__ = ("tag", "size")
    TAG_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    tag: int
    size: int
    def __init__(self, tag: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class Page(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("size",)
    SIZE_FIELD_NUMBER: _ClassVar[int]
    size: int
    def __init__(self, size: _Optional[int] = ...) -> None: ...

class Withdrawal(_message.Message):
    __slots__ = ("failure",)
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    failure: Failure
    def __init__(self, failure: _Optional[_Union[Failure, _Mapping[str, object]]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("failure",)
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    failure: Failure
    def __init__(self, failure: _Optional[_Union[Failure, _Mapping[str, object]]] = ...) -> None: ...

class Departure(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Failure(_message.Message):
    __slots__ = ("scope", "kind", "reason", "round", "ranks")
    class Scope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SCOPE_UNSPECIFIED: _ClassVar[Failure.Scope]
        SCOPE_ROUND: _ClassVar[Failure.Scope]
        SCOPE_JOB: _ClassVar[Failure.Scope]
    SCOPE_UNSPECIFIED: Failure.Scope
    SCOPE_ROUND: Failure.Scope
    SCOPE_JOB: Failure.Scope
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Failure.Kind]
        KIND_MISMATCH: _ClassVar[Failure.Kind]
        KIND_LOST: _ClassVar[Failure.Kind]
        KIND_TIMEOUT: _ClassVar[Failure.Kind]
        KIND_PROTOCOL: _ClassVar[Failure.Kind]
        KIND_STOPPING: _ClassVar[Failure.Kind]
        KIND_WEIGHT: _ClassVar[Failure.Kind]
    KIND_UNSPECIFIED: Failure.Kind
    KIND_MISMATCH: Failure.Kind
    KIND_LOST: Failure.Kind
    KIND_TIMEOUT: Failure.Kind
    KIND_PROTOCOL: Failure.Kind
    KIND_STOPPING: Failure.Kind
    KIND_WEIGHT: Failure.Kind
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    scope: Failure.Scope
    kind: Failure.Kind
    reason: str
    round: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, scope: _Optional[_Union[Failure.Scope, str]] = ..., kind: _Optional[_Union[Failure.Kind, str]] = ..., reason: _Optional[str] = ..., round: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("seat",)
    SEAT_FIELD_NUMBER: _ClassVar[int]
    seat: str
    def __init__(self, seat: _Optional[str] = ...) -> None: ...

class LeaveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReadResidualsRequest(_message.Message):
    __slots__ = ("seat", "revoked")
    SEAT_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    seat: str
    revoked: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, seat: _Optional[str] = ..., revoked: _Optional[_Iterable[int]] = ...) -> None: ...

class ReadResidualsResponse(_message.Message):
    __slots__ = ("residual",)
    RESIDUAL_FIELD_NUMBER: _ClassVar[int]
    residual: Residual
    def __init__(self, residual: _Optional[_Union[Residual, _Mapping[str, object]]] = ...) -> None: ...

class WriteResidualsRequest(_message.Message):
    __slots__ = ("seat", "residual")
    SEAT_FIELD_NUMBER: _ClassVar[int]
    RESIDUAL_FIELD_NUMBER: _ClassVar[int]
    seat: str
    residual: Residual
    def __init__(self, seat: _Optional[str] = ..., residual: _Optional[_Union[Residual, _Mapping[str, object]]] = ...) -> None: ...

class Residual(_message.Message):
    __slots__ = ("identity", "elements", "counts", "size", "geometry", "payload")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    GEOMETRY_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    identity: int
    elements: int
    counts: _containers.RepeatedScalarFieldContainer[int]
    size: int
    geometry: int
    payload: bytes
    def __init__(self, identity: _Optional[int] = ..., elements: _Optional[int] = ..., counts: _Optional[_Iterable[int]] = ..., size: _Optional[int] = ..., geometry: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class WriteResidualsResponse(_message.Message):
    __slots__ = ("restored", "dropped")
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    restored: int
    dropped: int
    def __init__(self, restored: _Optional[int] = ..., dropped: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("version", "node_id", "address", "socket", "metrics", "uptime", "jobs", "events")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SOCKET_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    UPTIME_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    version: str
    node_id: str
    address: str
    socket: str
    metrics: str
    uptime: _duration_pb2.Duration
    jobs: _containers.RepeatedCompositeFieldContainer[JobStatus]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    def __init__(self, version: _Optional[str] = ..., node_id: _Optional[str] = ..., address: _Optional[str] = ..., socket: _Optional[str] = ..., metrics: _Optional[str] = ..., uptime: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping[str, object]]] = ..., jobs: _Optional[_Iterable[_Union[JobStatus, _Mapping[str, object]]]] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping[str, object]]]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("time", "level", "text", "generation", "round", "ranks")
    TIME_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    time: _timestamp_pb2.Timestamp
    level: str
    text: str
    generation: str
    round: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping[str, object]]] = ..., level: _Optional[str] = ..., text: _Optional[str] = ..., generation: _Optional[str] = ..., round: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class StageSeconds(_message.Message):
    __slots__ = ("stage", "seconds")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    stage: str
    seconds: float
    def __init__(self, stage: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class StalledRound(_message.Message):
    __slots__ = ("sequence", "seconds", "ranks", "whom")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    WHOM_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    seconds: float
    ranks: _containers.RepeatedScalarFieldContainer[int]
    whom: str
    def __init__(self, sequence: _Optional[int] = ..., seconds: _Optional[float] = ..., ranks: _Optional[_Iterable[int]] = ..., whom: _Optional[str] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("generation", "world_size", "node", "nodes", "ranks", "links", "rounds_done", "rounds_failed", "rounds_open", "failure", "stages", "ledger_seconds", "stalled", "attempt")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_DONE_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FAILED_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_OPEN_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    LEDGER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STALLED_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    generation: str
    world_size: int
    node: int
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    ranks: _containers.RepeatedCompositeFieldContainer[RankStatus]
    links: _containers.RepeatedCompositeFieldContainer[LinkStatus]
    rounds_done: int
    rounds_failed: int
    rounds_open: int
    failure: str
    stages: _containers.RepeatedCompositeFieldContainer[StageSeconds]
    ledger_seconds: float
    stalled: _containers.RepeatedCompositeFieldContainer[StalledRound]
    attempt: int
    def __init__(self, generation: _Optional[str] = ..., world_size: _Optional[int] = ..., node: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping[str, object]]]] = ..., ranks: _Optional[_Iterable[_Union[RankStatus, _Mapping[str, object]]]] = ..., links: _Optional[_Iterable[_Union[LinkStatus, _Mapping[str, object]]]] = ..., rounds_done: _Optional[int] = ..., rounds_failed: _Optional[int] = ..., rounds_open: _Optional[int] = ..., failure: _Optional[str] = ..., stages: _Optional[_Iterable[_Union[StageSeconds, _Mapping[str, object]]]] = ..., ledger_seconds: _Optional[float] = ..., stalled: _Optional[_Iterable[_Union[StalledRound, _Mapping[str, object]]]] = ..., attempt: _Optional[int] = ...) -> None: ...

class RankStatus(_message.Message):
    __slots__ = ("rank", "host", "pid", "joined", "path", "sequences", "straggling", "last_arrivals", "steps", "step_seconds", "communication", "left")
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    STRAGGLING_FIELD_NUMBER: _ClassVar[int]
    LAST_ARRIVALS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATION_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    rank: int
    host: str
    pid: int
    joined: bool
    path: str
    sequences: int
    straggling: float
    last_arrivals: int
    steps: int
    step_seconds: float
    communication: float
    left: bool
    def __init__(self, rank: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., joined: _Optional[bool] = ..., path: _Optional[str] = ..., sequences: _Optional[int] = ..., straggling: _Optional[float] = ..., last_arrivals: _Optional[int] = ..., steps: _Optional[int] = ..., step_seconds: _Optional[float] = ..., communication: _Optional[float] = ..., left: _Optional[bool] = ...) -> None: ...

class LinkStatus(_message.Message):
    __slots__ = ("node", "address", "connected", "bytes_sent", "bytes_received", "connections", "silent", "sent_rate", "received_rate", "bandwidth", "round_trip_seconds", "queued_bytes", "reopened", "resent", "damaged", "usual_bandwidth")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    SENT_RATE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_RATE_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_BYTES_FIELD_NUMBER: _ClassVar[int]
    REOPENED_FIELD_NUMBER: _ClassVar[int]
    RESENT_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    USUAL_BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    node: int
    address: str
    connected: bool
    bytes_sent: int
    bytes_received: int
    connections: int
    silent: _duration_pb2.Duration
    sent_rate: float
    received_rate: float
    bandwidth: float
    round_trip_seconds: float
    queued_bytes: int
    reopened: int
    resent: int
    damaged: int
    usual_bandwidth: float
    def __init__(self, node: _Optional[int] = ..., address: _Optional[str] = ..., connected: _Optional[bool] = ..., bytes_sent: _Optional[int] = ..., bytes_received: _Optional[int] = ..., connections: _Optional[int] = ..., silent: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping[str, object]]] = ..., sent_rate: _Optional[float] = ..., received_rate: _Optional[float] = ..., bandwidth: _Optional[float] = ..., round_trip_seconds: _Optional[float] = ..., queued_bytes: _Optional[int] = ..., reopened: _Optional[int] = ..., resent: _Optional[int] = ..., damaged: _Optional[int] = ..., usual_bandwidth: _Optional[float] = ...) -> None: ...

class TraceRequest(_message.Message):
    __slots__ = ("seconds",)
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    def __init__(self, seconds: _Optional[float] = ...) -> None: ...

class TraceResponse(_message.Message):
    __slots__ = ("source", "spans", "dropped", "deeds")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    DEEDS_FIELD_NUMBER: _ClassVar[int]
    source: TraceSource
    spans: _containers.RepeatedCompositeFieldContainer[TraceSpan]
    dropped: int
    deeds: _containers.RepeatedCompositeFieldContainer[TraceDeeds]
    def __init__(self, source: _Optional[_Union[TraceSource, _Mapping[str, object]]] = ..., spans: _Optional[_Iterable[_Union[TraceSpan, _Mapping[str, object]]]] = ..., dropped: _Optional[int] = ..., deeds: _Optional[_Iterable[_Union[TraceDeeds, _Mapping[str, object]]]] = ...) -> None: ...

class TraceDeeds(_message.Message):
    __slots__ = ("generation", "rank", "words")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    generation: str
    rank: int
    words: bytes
    def __init__(self, generation: _Optional[str] = ..., rank: _Optional[int] = ..., words: _Optional[bytes] = ...) -> None: ...

class TraceSource(_message.Message):
    __slots__ = ("node_id", "host", "pid", "clock", "epoch_nanoseconds", "jobs")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_NANOSECONDS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    host: str
    pid: int
    clock: str
    epoch_nanoseconds: int
    jobs: _containers.RepeatedCompositeFieldContainer[TraceJob]
    def __init__(self, node_id: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., clock: _Optional[str] = ..., epoch_nanoseconds: _Optional[int] = ..., jobs: _Optional[_Iterable[_Union[TraceJob, _Mapping[str, object]]]] = ...) -> None: ...

class TraceJob(_message.Message):
    __slots__ = ("generation", "node", "nodes", "offsets", "ranks")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    generation: str
    node: int
    nodes: _containers.RepeatedScalarFieldContainer[str]
    offsets: _containers.RepeatedCompositeFieldContainer[ClockOffset]
    ranks: _containers.RepeatedCompositeFieldContainer[TraceRank]
    def __init__(self, generation: _Optional[str] = ..., node: _Optional[int] = ..., nodes: _Optional[_Iterable[str]] = ..., offsets: _Optional[_Iterable[_Union[ClockOffset, _Mapping[str, object]]]] = ..., ranks: _Optional[_Iterable[_Union[TraceRank, _Mapping[str, object]]]] = ...) -> None: ...

class ClockOffset(_message.Message):
    __slots__ = ("node", "nanoseconds")
    NODE_FIELD_NUMBER: _ClassVar[int]
    NANOSECONDS_FIELD_NUMBER: _ClassVar[int]
    node: int
    nanoseconds: int
    def __init__(self, node: _Optional[int] = ..., nanoseconds: _Optional[int] = ...) -> None: ...

class TraceRank(_message.Message):
    __slots__ = ("rank", "host", "pid")
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    rank: int
    host: str
    pid: int
    def __init__(self, rank: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ...) -> None: ...

class TraceSpan(_message.Message):
    __slots__ = ("track", "rank", "stage", "start_nanoseconds", "end_nanoseconds", "generation", "round", "chunk", "peer", "bytes")
    TRACK_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    START_NANOSECONDS_FIELD_NUMBER: _ClassVar[int]
    END_NANOSECONDS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    track: str
    rank: int
    stage: str
    start_nanoseconds: int
    end_nanoseconds: int
    generation: str
    round: int
    chunk: int
    peer: int
    bytes: int
    def __init__(self, track: _Optional[str] = ..., rank: _Optional[int] = ..., stage: _Optional[str] = ..., start_nanoseconds: _Optional[int] = ..., end_nanoseconds: _Optional[int] = ..., generation: _Optional[str] = ..., round: _Optional[int] = ..., chunk: _Optional[int] = ..., peer: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...
