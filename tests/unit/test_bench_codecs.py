from __future__ import annotations

import io

import pytest
from rich.console import Console

from gradwire_ops.bench_codecs import CodecRow, table
from gradwire_ops.bench_plan import CodecsPlan, PlanError, PlanFlags, make_codecs_plan

ROW = CodecRow(
    codec="int8",
    size_bytes=64 << 20,
    encode_bytes_per_second=2e9,
    decode_bytes_per_second=3e9,
    encoded_share=0.25,
    relative_error=0.007,
)


def test_the_default_is_one_tensor_of_64_mib() -> None:
    assert make_codecs_plan(PlanFlags()) == CodecsPlan(64 << 20, 7)
    assert make_codecs_plan(PlanFlags(sizes="1MiB", repeat="3")) == CodecsPlan(1 << 20, 3)


def test_every_flag_that_does_not_go_with_codecs_is_listed() -> None:
    flags = PlanFlags(
        sizes="1MiB,2MiB",
        nodes="2",
        ranks_per_node="3",
        repeat="0",
        dtype="float64",
        lab=True,
        rate="1gbit",
    )
    with pytest.raises(PlanError) as caught:
        make_codecs_plan(flags)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        *("--nodes", "--ranks-per-node", "--dtype", "--lab", "--rate", "--sizes", "--repeat"),
    ]


def test_a_size_that_is_none_is_refused() -> None:
    with pytest.raises(PlanError, match="'big' is not a size"):
        make_codecs_plan(PlanFlags(sizes="big"))


def test_at_the_break_even_rate_what_is_not_sent_takes_as_long_as_coding() -> None:
    size = 1e9
    saved_bits = 8 * size * (1 - 0.25)
    coding_seconds = size / 2e9 + 1.5 * size / 3e9
    rate = ROW.break_even_bits_per_second
    assert saved_bits / rate == pytest.approx(coding_seconds)
    assert ROW.to_dict()["break_even_bits_per_second"] == rate


def test_the_table_says_what_its_break_even_assumes() -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(table([ROW]))
    assert isinstance(console.file, io.StringIO)
    text = " ".join(console.file.getvalue().split())
    for words in ("64 MiB", "2.00 GB/s", "0.2500", "0.70%", "6.0 Gbit/s", "did not overlap"):
        assert words in text
