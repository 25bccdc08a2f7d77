"""What a lossy wire loses comes back in later steps, and after a restart."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch

if TYPE_CHECKING:
    from gradwire import Session
    from gradwire._checkpoint import State

InThreads: TypeAlias = Callable[..., list[Any]]

FED_BACK = ["int8", "int8:rounding=stochastic,seed=5", "fp8", "topk", "bf16:feedback=on"]
ELEMENTS = 3000
STEPS = 6


def gradient(rank: int, step: int, elements: int = ELEMENTS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(elements, generator=generator)


def stepped(
    session: Session, wire: str, steps: range, elements: int = ELEMENTS
) -> list[torch.Tensor]:
    """The results of these steps."""
    return [
        session.all_reduce(
            gradient(session.rank, step, elements), wire=wire, name="weights"
        ).wait()
        for step in steps
    ]


def lost(state: State) -> torch.Tensor:
    """What the only tensor has lost at this node, as an element of a mean."""
    (residuals,) = state["residuals"]
    return next((each["values"] for each in residuals.values()), torch.zeros(1))


def saved(state: State) -> State:
    """As a checkpoint has it."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: State = torch.load(file, weights_only=True)
    return loaded


@pytest.mark.case("M10")
@pytest.mark.parametrize("wire", FED_BACK)
@pytest.mark.parametrize("layout", [(1, 1), (2, 2)])
def test_what_came_and_what_is_owed_are_what_was_brought(
    in_threads: InThreads, layout: tuple[int, ...], wire: str
) -> None:
    def work(session: Session) -> tuple[torch.Tensor, torch.Tensor]:
        results = stepped(session, wire, range(STEPS))
        return torch.stack(results).sum(0), lost(session.state_dict())

    ranks = sum(layout)
    steps = [gradient(rank, step) for step in range(STEPS) for rank in range(ranks)]
    mean = torch.stack(steps).sum(0) / ranks
    outcomes = in_threads(layout, work)
    # Sums are kept scaled by a power of two, which for these worlds is the mean's.
    owed = torch.stack([rest.expand(ELEMENTS) for _, rest in outcomes]).sum(0)
    for came, _ in outcomes:
        assert torch.allclose(came + owed, mean, rtol=0, atol=1e-4)


@pytest.mark.parametrize("wire", FED_BACK)
def test_over_many_steps_the_same_gradient_comes_through(
    in_threads: InThreads, wire: str
) -> None:
    def work(session: Session) -> float:
        steps, total = 200, torch.zeros(ELEMENTS)
        for _ in range(steps):
            tensor = gradient(session.rank, 0)
            total += session.all_reduce(tensor, wire=wire, name="weights").wait()
        mean = torch.stack([gradient(rank, 0) for rank in range(3)]).mean(0)
        return float((total / steps - mean).norm() / mean.norm())

    # Without feedback topk would send the same elements for ever: an error of 0.9.
    assert max(in_threads((1, 1, 1), work)) < (0.5 if wire == "topk" else 0.01)


@pytest.mark.parametrize("wire", ["int8:feedback=off", "bf16"])
def test_feedback_can_be_left_out(in_threads: InThreads, wire: str) -> None:
    def work(session: Session) -> tuple[bool, float]:
        first, second = (
            session.all_reduce(gradient(session.rank, 0), wire=wire, name="weights").wait()
            for _ in range(2)
        )
        return torch.equal(first, second), lost(session.state_dict()).abs().max().item()

    assert in_threads((1, 1), work) == [(True, 0.0)] * 2


def test_what_has_no_name_has_no_feedback(in_threads: InThreads) -> None:
    def work(session: Session) -> list[dict[str, Any]]:
        session.all_reduce(gradient(session.rank, 0), wire="topk").wait()
        residuals: list[dict[str, Any]] = session.state_dict()["residuals"]
        return residuals

    assert in_threads((1, 1), work) == [[{}], [{}]]


def test_two_rounds_of_one_name_take_turns(in_threads: InThreads) -> None:
    def work(session: Session) -> list[torch.Tensor]:
        tensors = [gradient(session.rank, step, 2_500_000) for step in range(4)]
        futures = [session.all_reduce(each, wire="int8", name="w") for each in tensors]
        return [future.wait() for future in futures]

    def one_by_one(session: Session) -> list[torch.Tensor]:
        tensors = [gradient(session.rank, step, 2_500_000) for step in range(4)]
        return [session.all_reduce(each, wire="int8", name="w").wait() for each in tensors]

    together, apart = in_threads((1, 1), work), in_threads((1, 1), one_by_one)
    assert all(map(torch.equal, together[0], apart[1]))


@pytest.mark.parametrize("wire", FED_BACK)
def test_what_was_lost_counts_as_much_whatever_the_weights_are_now(
    in_threads: InThreads, wire: str
) -> None:
    def work(session: Session) -> list[float]:
        largest = []
        for weight in (4096.0, 4096.0, 1.0, 1.0, 0.0, 1.0):
            session.weight = weight if session.rank else max(weight, 1.0)
            tensor = gradient(session.rank, 0)
            result = session.all_reduce(tensor, wire=wire, name="weights").wait()
            largest.append(result.abs().max().item())
        return largest

    # A gradient comes back twice or three times at most: never by the weights' ratio.
    for largest in in_threads((1, 1), work):
        assert max(largest) < 40


@pytest.mark.parametrize("wire", FED_BACK)
def test_a_node_of_weight_zero_keeps_what_it_owes(in_threads: InThreads, wire: str) -> None:
    def work(session: Session) -> tuple[torch.Tensor, torch.Tensor]:
        stepped(session, wire, range(2))
        before = lost(session.state_dict())
        session.weight = float(session.rank)
        stepped(session, wire, range(2, 3))
        return before, lost(session.state_dict())

    before, after = in_threads((1, 1), work)[0]
    assert torch.equal(before, after)


@pytest.mark.case("M08")
@pytest.mark.parametrize("wire", [*FED_BACK, "int8:feedback=off"])
@pytest.mark.parametrize("layout", [(1, 1), (1, 1, 1)])
def test_a_result_that_is_not_finite_leaves_nothing_behind(
    in_threads: InThreads, layout: tuple[int, ...], wire: str
) -> None:
    """Beside an infinity that overflowed, numbers are huge, and so is what is lost of them."""

    def work(session: Session, *, overflow: bool) -> tuple[torch.Tensor, torch.Tensor]:
        stepped(session, wire, range(2))
        if overflow:
            huge = gradient(session.rank, 7) * 1e30
            huge[5] = torch.inf
            session.all_reduce(huge, wire=wire, name="weights").wait()
            saved_now = lost(session.state_dict())
        else:
            saved_now = lost(session.state_dict())
        return saved_now, stepped(session, wire, range(2, 3))[0]

    plain = in_threads(layout, lambda session: work(session, overflow=False))
    after = in_threads(layout, lambda session: work(session, overflow=True))
    for one, other in zip(plain, after, strict=True):
        assert torch.equal(one[0], other[0]), "what a checkpoint keeps of it"
        assert torch.equal(one[1], other[1])


# -- checkpoints


def test_urgent_tensors_go_on_too(in_threads: InThreads) -> None:
    def steps(session: Session, those: range) -> list[torch.Tensor]:
        return [
            session.all_reduce(
                gradient(session.rank, step), wire="topk", name="w", urgent=True
            ).wait()
            for step in those
        ]

    whole = in_threads((1, 1), lambda session: steps(session, range(4)))[0][2:]
    states = in_threads(
        (1, 1), lambda session: (steps(session, range(2)), session.state_dict())
    )

    def second_half(session: Session) -> list[torch.Tensor]:
        session.load_state_dict(states[session.rank][1])
        return steps(session, range(2, 4))

    assert all(map(torch.equal, in_threads((1, 1), second_half)[0], whole))


def test_what_was_loaded_can_be_saved_again(in_threads: InThreads) -> None:
    states = in_threads(
        (1, 1), lambda session: (stepped(session, "topk", range(2)), session.state_dict())[1]
    )

    def work(session: Session) -> State:
        session.load_state_dict(states[session.rank])
        return session.state_dict()

    for again, state in zip(in_threads((1, 1), work), states, strict=True):
        assert torch.equal(lost(again), lost(state))
        about = [[each["about"] for each in way.values()] for way in state["residuals"]]
        assert [[each["about"] for each in way.values()] for way in again["residuals"]] == about


def test_loading_replaces_what_the_session_had(in_threads: InThreads) -> None:
    fresh = in_threads((1, 1), lambda session: session.state_dict())

    def work(session: Session) -> list[torch.Tensor]:
        stepped(session, "topk", range(3))
        session.load_state_dict(fresh[session.rank])
        return stepped(session, "topk", range(1))

    anew = in_threads((1, 1), lambda session: stepped(session, "topk", range(1)))
    assert torch.equal(in_threads((1, 1), work)[0][0], anew[0][0])


@pytest.mark.parametrize("wire", FED_BACK)
@pytest.mark.parametrize("layout", [(2, 2), (1, 1, 1)])
def test_a_job_that_goes_on_from_a_checkpoint_gives_the_same_bits(
    in_threads: InThreads, layout: tuple[int, ...], wire: str
) -> None:
    elements = 70_000

    def whole(session: Session) -> list[torch.Tensor]:
        return stepped(session, wire, range(STEPS), elements)

    def first_half(session: Session) -> State:
        stepped(session, wire, range(STEPS // 2), elements)
        return saved(session.state_dict())

    undisturbed = in_threads(layout, whole)[0][STEPS // 2 :]
    states = in_threads(layout, first_half)

    def second_half(session: Session) -> list[torch.Tensor]:
        session.load_state_dict(states[session.rank])
        return stepped(session, wire, range(STEPS // 2, STEPS), elements)

    for results in in_threads(layout, second_half):
        assert all(map(torch.equal, results, undisturbed))


def test_a_state_of_another_layout_is_not_taken_and_that_is_told(
    in_threads: InThreads, caplog: pytest.LogCaptureFixture
) -> None:
    states = in_threads(
        (1, 1), lambda session: (stepped(session, "topk", range(2)), session.state_dict())[1]
    )

    def work(session: Session) -> list[torch.Tensor]:
        session.load_state_dict(states[session.rank % 2])
        return stepped(session, "topk", range(1))

    anew = in_threads((1, 2), lambda session: stepped(session, "topk", range(1)))
    loaded = in_threads((1, 2), work)
    assert torch.equal(anew[0][0], loaded[0][0])
    assert "begins anew: it was kept by a job of another layout" in caplog.text


def test_a_tensor_of_another_size_under_the_same_name_begins_anew(
    in_threads: InThreads,
) -> None:
    def work(session: Session) -> list[torch.Tensor]:
        stepped(session, "topk", range(2))
        states = session.state_dict()
        first = stepped(session, "topk", range(2, 3), elements=500)
        session.load_state_dict(states)
        return first

    fresh = in_threads((1, 1), lambda session: stepped(session, "topk", range(2, 3), 500))
    assert all(torch.equal(each[0], fresh[0][0]) for each in in_threads((1, 1), work))


def test_a_state_is_asked_for_between_steps(in_threads: InThreads) -> None:
    def work(session: Session) -> None:
        if session.rank == 0:
            open_ = session.all_reduce(torch.ones(5000), wire="int8", name="w")
            # The other rank has not come: it waits for a letter.
            with pytest.raises(ValueError, match="no collective under way; wait for all"):
                session.state_dict()
            session.send(torch.ones(1), to=1).wait()
        else:
            session.receive(torch.ones(1), source=0).wait()
            open_ = session.all_reduce(torch.ones(5000), wire="int8", name="w")
        open_.wait()

    in_threads((1, 1), work)


@pytest.mark.parametrize("state", [{}, {"version": 99}, {"version": 1}, [1], None])
def test_what_is_no_state_is_refused(in_threads: InThreads, state: State) -> None:
    def work(session: Session) -> None:
        with pytest.raises(ValueError, match="expected what state_dict"):
            session.load_state_dict(state)

    in_threads((1,), work)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("counts", torch.tensor([2**63 - 1])),
        ("counts", torch.tensor([-1])),
        ("counts", torch.tensor([1.0])),
        ("counts", [1]),
        ("counts", torch.tensor([], dtype=torch.int64)),
        ("values", torch.full((ELEMENTS,), torch.nan)),
        ("values", torch.zeros(ELEMENTS, dtype=torch.float64)),
        ("values", torch.zeros(7)),
        ("values", torch.zeros(2, ELEMENTS // 2)),
        ("values", None),
        ("elements", -1),
        ("elements", "many"),
        ("geometry", "far"),
    ],
)
def test_a_state_that_was_changed_is_refused_whole_and_the_session_goes_on(
    in_threads: InThreads, field: str, value: object
) -> None:
    def work(session: Session) -> None:
        stepped(session, "topk", range(2))
        state, before = session.state_dict(), lost(session.state_dict())
        for each in state["residuals"][0].values():
            each[field] = value
        if session.rank == 0:
            with pytest.raises(ValueError, match=r"residual|state_dict|invalid"):
                session.load_state_dict(state)
        assert torch.equal(lost(session.state_dict()), before)
        stepped(session, "topk", range(2, 3))

    in_threads((2, 1), work)
