from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch

if TYPE_CHECKING:
    from gradwire import Session

InThreads: TypeAlias = Callable[..., list[Any]]
InProcesses: TypeAlias = Callable[..., list[Any]]

OFF = {"GRADWIRE_SHM": "off"}
LAYOUT = (2, 2)


def everything(session: Session) -> tuple[str, list[str]]:
    """The path, and the digests of results of many kinds."""
    random = torch.Generator().manual_seed(session.rank)
    digests = []
    for count in (0, 1, 3, 1000, 1_500_000, 5_000_000):
        for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int16):
            if count > 2_000_000 and dtype != torch.float32:
                continue
            tensor = (100 * torch.randn(count, generator=random)).to(dtype)
            for op in ("mean", "max"):
                result = session.all_reduce(tensor.clone(), op=op).wait()
                data = result.view(torch.uint8).numpy().tobytes()
                digests.append(hashlib.sha1(data, usedforsecurity=False).hexdigest())
    return session.path, digests


def test_the_stream_gives_the_same_bits_as_shared_memory(in_processes: InProcesses) -> None:
    shared = in_processes(LAYOUT, everything)
    digests = shared[0][1]
    assert shared == [("shared_memory", digests)] * 4
    assert in_processes(LAYOUT, everything, environments=[OFF] * 4) == [("stream", digests)] * 4


@pytest.mark.parametrize("streaming", [0, 1])
def test_where_one_rank_of_a_node_shares_no_memory_none_does(
    in_processes: InProcesses, streaming: int
) -> None:
    environments = [OFF if rank == streaming else {} for rank in range(3)]
    digests = in_processes((2, 1), everything)[0][1]
    results = in_processes((2, 1), everything, environments=environments)
    assert [path for path, _ in results] == ["stream", "stream", "shared_memory"]
    assert [other for _, other in results] == [digests] * 3


def test_a_failed_round_on_the_stream_can_be_followed_by_a_good_one(
    in_threads: InThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWIRE_SHM", "off")

    def work(session: Session) -> tuple[str, str, set[float]]:
        with pytest.raises(RuntimeError) as caught:
            session.all_reduce(torch.ones(3_000_000 + session.rank // 2)).wait()
        tensor = torch.full((3_000_000,), session.rank + 1.0)
        return session.path, str(caught.value), set(session.all_reduce(tensor).wait().tolist())

    for path, text, values in in_threads((1, 2), work):
        assert path == "stream"
        assert "3000000 x float32" in text
        assert "3000001 x float32" in text
        assert values == {2.0}
