"""`gradwire bench --codecs`: what the codecs of the lossy wires cost, and what they save."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from gradwire_ops.bench_plan import PlanError, make_codecs_plan
from gradwire_ops.bench_table import format_rate
from gradwire_ops.sizes import format_size
from gradwire_proto.v1 import tensor_pb2 as pb
from gradwire_server.codecs import codec_of, encoded_size, segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gradwire_ops.bench_plan import CodecsPlan, PlanFlags
    from gradwire_server.codecs import Codec

SEED = 1797
RATIO = 0.01
DECODED_TIMES = 1.5
"""With two nodes: half of the tensor comes in as the other's sums, half as its results, and
half is the own result, which must lose what it loses on the other node."""

_HEADINGS = ("codec", "encode", "decode", "bytes per byte", "error", "break-even")

_CAPTION = """GB of fp32 in a second of one core. Error: relative RMS, on normal data; what is
lost is not lost for good where it is added the next time. Break-even: the rate of a link up
to which two nodes, one core each, are quicker with it than with exact sums, if coding did not
overlap with sending at all: a node encodes what it sends, once, and decodes what comes in and
its own half of the result, 1.5 times as much. What does overlap makes it higher."""


@dataclass(frozen=True, slots=True)
class CodecRow:
    """What one codec did to one tensor. Rates are bytes of fp32 a second, on one core."""

    codec: str
    size_bytes: int
    encode_bytes_per_second: float
    decode_bytes_per_second: float
    encoded_share: float
    """Encoded bytes over bytes of fp32."""
    relative_error: float
    """Root mean square of what is lost over that of the values, which are normal."""

    @property
    def break_even_bits_per_second(self) -> float:
        """Of a link: below, the bytes that are not sent save more time than coding takes."""
        coding = 1 / self.encode_bytes_per_second + DECODED_TIMES / self.decode_bytes_per_second
        return 8 * (1 - self.encoded_share) / coding

    def to_dict(self) -> dict[str, object]:
        """An element of --json."""
        return {
            **asdict(self),
            "break_even_bits_per_second": self.break_even_bits_per_second,
        }


def run(flags: PlanFlags, *, as_json: bool) -> int:
    """Measure and print. 2 for wrong flags."""
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        plan = make_codecs_plan(flags)
    except PlanError as error:
        progress.print(str(error), style="red", markup=False)
        return 2
    rows = list(_measure(plan))
    if as_json:
        Console().print_json(data=[row.to_dict() for row in rows])
    else:
        Console().print(table(rows))
    return 0


def _codecs() -> dict[str, Codec]:
    return {
        "bf16": codec_of(pb.WIRE_BF16),
        "fp16": codec_of(pb.WIRE_FP16),
        "int8": codec_of(pb.WIRE_INT8),
        "int8, stochastic": codec_of(pb.WIRE_INT8, stochastic=True),
        "fp8": codec_of(pb.WIRE_FP8),
        "fp8, stochastic": codec_of(pb.WIRE_FP8, stochastic=True),
        f"topk, {RATIO:.0%}": codec_of(pb.WIRE_TOPK, RATIO),
    }


def _measure(plan: CodecsPlan) -> Iterator[CodecRow]:
    # As the daemon, whose other cores are others'.
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(SEED)
    values = torch.randn(plan.size_bytes // 4, generator=generator)
    decoded = torch.zeros_like(values)
    for name, codec in _codecs().items():
        data = torch.zeros(encoded_size(codec, len(values)), dtype=torch.uint8)
        encode, decode = _passes(codec, values, data, decoded)
        encode(), decode()  # memory is made, and caches are as they will be
        times = [(_seconds(encode), _seconds(decode)) for _ in range(plan.repeat)]
        encoding, decoding = (statistics.median(each) for each in zip(*times, strict=True))
        yield CodecRow(
            codec=name,
            size_bytes=values.nbytes,
            encode_bytes_per_second=values.nbytes / encoding,
            decode_bytes_per_second=values.nbytes / decoding,
            encoded_share=data.nbytes / values.nbytes,
            relative_error=float((decoded - values).norm() / values.norm()),
        )


def _passes(
    codec: Codec, values: torch.Tensor, data: torch.Tensor, decoded: torch.Tensor
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Encoding and decoding the tensor, segment by segment."""
    parts = []
    begin = 0
    for start, stop in segments(codec, len(values)):
        end = begin + codec.size(stop - start)
        parts.append((values[start:stop], data[begin:end], decoded[start:stop]))
        begin = end

    def encode() -> None:
        for number, (part, written, _) in enumerate(parts):
            codec.encode(part, written, number)

    def decode() -> None:
        for _, written, part in parts:
            codec.decode(written, part)

    return encode, decode


def _seconds(work: Callable[[], None]) -> float:
    """Of this thread's CPU: all is done in it, and others may want the core meanwhile."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


def table(rows: Sequence[CodecRow]) -> Table:
    """One line for each codec."""
    title = f"codecs, {format_size(rows[0].size_bytes)} of float32"
    caption = " ".join(_CAPTION.split())
    result = Table(
        title=title,
        caption=caption,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for heading in _HEADINGS:
        result.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        result.add_row(
            row.codec,
            format_rate(row.encode_bytes_per_second),
            format_rate(row.decode_bytes_per_second),
            f"{row.encoded_share:.4f}",
            f"{row.relative_error:.2%}",
            f"{row.break_even_bits_per_second / 1e9:.1f} Gbit/s",
        )
    return result
