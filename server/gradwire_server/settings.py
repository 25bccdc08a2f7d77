"""The daemon's settings: flags, then GRADWIRE_*, then one TOML file, then defaults."""

from __future__ import annotations

import os
import re
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from gradwire_proto.addresses import (
    LONGEST_SOCKET_PATH,
    SYSTEM_SOCKET,
    is_loopback,
    is_unspecified,
    split_address,
    split_advertised,
    split_list,
    user_socket,
)
from gradwire_proto.dtypes import WIDEST_BYTES
from gradwire_proto.tokens import LEAST_KEY_BYTES
from gradwire_server.errors import SettingsError
from gradwire_server.transport.stripes import AUTO, MOST_LANES
from gradwire_server.whereabouts import find_doorsteps

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class Settings(BaseSettings):
    """Everything that can be set; validated once, then frozen."""

    model_config = SettingsConfigDict(
        env_prefix="GRADWIRE_", frozen=True, extra="forbid", validate_default=True
    )

    listen: str = "127.0.0.1:50700"
    """HOST:PORT for the other daemons, or several with commas. HOST may be the name of an
    interface; PORT may be LOW-HIGH, the first of them that is free, and 0 means any."""
    advertise: str = ""
    """HOST or HOST:PORT that is told to the other daemons, or several with commas: one for each
    network that is to carry connections. By default where we listen."""
    connections: int = Field(AUTO, ge=AUTO, le=MOST_LANES)
    """Connections to each other daemon; of two daemons, the one that dials decides. 0: as many
    as suit the way."""
    bandwidth: int = Field(0, ge=0)
    """Bits per second of this node's network, or like 200mbit; 0: as fast as the fastest. Where
    nodes differ, a slower one adds up a smaller share of each large chunk."""
    socket: Path = Field(default_factory=lambda: default_socket())
    """Unix socket for the ranks."""
    metrics_listen: str = "127.0.0.1:9470"
    """HOST:PORT of the metrics page; empty: none."""
    metrics_hosts: str = ""
    """Names by which the page may be asked for, with commas, beside those of loopback. Where it
    listens beyond loopback: any, unless some are given, and then IP addresses, too."""
    certs: Path | None = None
    """Folder with ca.crt, tls.crt and tls.key: other daemons, and ranks on other hosts, must
    show a certificate of this CA, and be shown one. Unix sockets stay as they are."""
    token_key: Path | None = None
    """File with the key of job tokens: ranks must show one. Equal on all daemons of a job."""
    insecure: bool = False
    """Listen on other than loopback addresses though nobody is authenticated."""
    shm_dir: Path = Path("/dev/shm")  # noqa: S108 - this is what a shared-memory folder is
    """Folder for the arenas, on a tmpfs."""
    slots: int = Field(8, ge=2, le=256)
    """Chunks that a node may have in flight."""
    chunk_bytes: int = Field((4 << 20) - (64 << 10), ge=4096, le=4 << 20)
    """Size of a chunk; equal on all daemons of a job. A message with one stays below the 4 MiB
    that gRPC clients accept unless told otherwise."""
    kernel_threads: int = Field(-1, ge=-1, le=1024)
    """Threads for sums; 0: the event loop adds by itself; -1: cores to spare, at most 8."""
    max_jobs: int = Field(64, ge=1)
    """Generations at a time; a job has one, or two if it has urgent tensors."""
    max_calls: int = Field(1024, ge=16)
    """Calls that one host may have open here, or all that use the Unix socket."""
    max_memory: int = Field(0, ge=0)
    """Bytes of shared memory for all jobs' arenas together; 0: what there is."""
    workers: int = Field(1, ge=1, le=64)
    """Processes among which tensors and links are spread, for networks faster than one core.
    Each further one listens one port on; on all nodes of a job as many are used as the node
    with the fewest has."""
    schedule: Literal["auto", "ring", "tree", "direct", "one-shot"] = "auto"
    """How chunks travel; equal on all daemons of a job."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is logged."""
    log_format: Literal["auto", "text", "json"] = "text"
    """Lines for people, or one JSON object a line; auto: text on a terminal, else JSON."""
    trace: Path | None = None
    """Record what happens, and write the latest of it here in the end."""
    embedded: bool = False
    """End when the last rank has left."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags before the environment before the file."""
        flags = init_settings()
        file = flags.pop("config", None) or os.environ.get("GRADWIRE_CONFIG")
        return (
            InitSettingsSource(settings_cls, flags),
            env_settings,
            InitSettingsSource(settings_cls, _read_file(file)),
        )

    @field_validator("listen", "metrics_listen")
    @classmethod
    def _is_address(cls, value: str, field: ValidationInfo) -> str:
        if field.field_name == "listen":
            find_doorsteps(value)
        elif value:
            split_address(value)
        return value

    @field_validator("metrics_hosts")
    @classmethod
    def _are_names(cls, value: str) -> str:
        for each in split_list(value) if value else ():
            if not re.fullmatch(r"[\w.-]+", each):
                raise ValueError(f"expected names of hosts without ports, got {each!r}")
        return value

    @field_validator("advertise")
    @classmethod
    def _leads_somewhere(cls, advertise: str) -> str:
        for each in split_list(advertise) if advertise else ():
            host, _ = split_advertised(each)
            if is_unspecified(host):
                raise ValueError(f"nobody can connect to {host}; name an address of this host")
        return advertise

    @field_validator("certs", "token_key", "trace", mode="before")
    @classmethod
    def _may_be_empty(cls, value: object) -> object:
        # As a compose file leaves it, where nobody has set it.
        return value or None

    @field_validator("bandwidth", mode="before")
    @classmethod
    def _is_rate(cls, value: object) -> object:
        return parse_bits(value) if isinstance(value, str) else value

    @field_validator("socket")
    @classmethod
    def _fits(cls, value: Path) -> Path:
        length = len(os.fsencode(value))
        if length > LONGEST_SOCKET_PATH:
            raise ValueError(
                f"a socket's path has at most {LONGEST_SOCKET_PATH} bytes, this one {length}"
            )
        return value

    @field_validator("chunk_bytes")
    @classmethod
    def _holds_whole_elements(cls, value: int) -> int:
        if value % WIDEST_BYTES:
            raise ValueError(f"expected a multiple of {WIDEST_BYTES}")
        return value

    @field_validator("shm_dir")
    @classmethod
    def _is_folder(cls, value: Path) -> Path:
        if not value.is_dir():
            raise ValueError(f"{value} is not a folder")
        return value

    @field_validator("workers")
    @classmethod
    def _has_ports_of_its_own(cls, workers: int, others: ValidationInfo) -> int:
        listen = others.data.get("listen", "localhost:0")
        if workers > 1 and any(len(each.ports) > 1 for each in find_doorsteps(listen)):
            raise ValueError(
                f"each worker listens one port on, so listen={listen} can't be a range of ports"
            )
        return workers

    @field_validator("insecure")
    @classmethod
    def _opens_nothing_by_accident(cls, insecure: bool, others: ValidationInfo) -> bool:
        listen = others.data.get("listen", "localhost:0")
        hosts = [host for each in find_doorsteps(listen) for host in each.hosts]
        certs = others.data.get("certs")
        if insecure and certs is not None:
            raise ValueError(
                f"certs={certs} asks for certificates and insecure for none: choose one, there"
                " may be a GRADWIRE_INSECURE=1 or a GRADWIRE_CERTS in the environment"
            )
        if not insecure and certs is None and not all(map(is_loopback, hosts)):
            raise ValueError(
                f"listen={listen} can be reached from other hosts, and without certificates"
                " nobody is authenticated: say --certs FOLDER (`gradwire certs` makes them);"
                " on a network you trust say --insecure or GRADWIRE_INSECURE=1, else"
                " listen on 127.0.0.1"
            )
        if insecure and others.data.get("token_key") and not all(map(is_loopback, hosts)):
            raise ValueError(
                f"tokens would cross the network to listen={listen} in the open: say --certs"
                " FOLDER instead of --insecure, or leave --token-key out"
            )
        return insecure

    @field_validator("token_key")
    @classmethod
    def _is_a_key(cls, path: Path | None) -> Path | None:
        if path is None:
            return None
        try:
            key = path.read_bytes().strip()
        except OSError as error:
            raise ValueError(
                f"{error.strerror}: `gradwire tokens init FILE` makes one"
            ) from error
        if len(key) < LEAST_KEY_BYTES:
            raise ValueError(
                f"expected {LEAST_KEY_BYTES} bytes or more, found {len(key)}:"
                " `gradwire tokens init FILE` makes a key"
            )
        return path

    @property
    def key(self) -> bytes | None:
        """Of job tokens."""
        return None if self.token_key is None else self.token_key.read_bytes().strip()

    @property
    def open(self) -> bool:
        """Anybody on another host may be served."""
        hosts = [host for each in find_doorsteps(self.listen) for host in each.hosts]
        return self.insecure and not all(map(is_loopback, hosts))


def load(flags: dict[str, object]) -> Settings:
    """Settings from flags (None: not given), environment and file.

    Raises SettingsError that lists every mistake, one a line.
    """
    given: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        raise SettingsError("\n".join(map(_line, error.errors()))) from error


def default_socket() -> Path:
    """The system's socket where we may make it, else one of this user's own."""
    folder = SYSTEM_SOCKET.parent
    if os.access(folder, os.W_OK) or (
        not folder.exists() and os.access(folder.parent, os.W_OK)
    ):
        return SYSTEM_SOCKET
    return user_socket(os.environ, tempfile.gettempdir(), os.getuid())


def parse_bits(text: str) -> int:
    """Bits per second: a number, or one with kbit, mbit or gbit. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?bit)?", text.strip().lower())
    if match is None:
        raise ValueError("expected bits per second, like 200000000, 200mbit or 2.5gbit")
    factors = {"kbit": 1_000, "mbit": 1_000_000, "gbit": 1_000_000_000}
    return round(float(match[1]) * factors.get(match[2] or "", 1))


def _read_file(file: object) -> dict[str, Any]:
    if not file:
        return {}
    try:
        return tomllib.loads(Path(str(file)).read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"config={file}: {error}") from error


def _line(error: ErrorDetails) -> str:
    name = ".".join(map(str, error["loc"]))
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{name}={error['input']}: {message}" if name else message
