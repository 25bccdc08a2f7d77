"""Which wire a tensor takes, and what its loss is kept under."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from gradwire import Parameter, Wire
from gradwire._names import Names
from gradwire._wires import Wires, Wiring, read


def wires(wiring: Wiring, model: nn.Module | None = None) -> Wires:
    names = Names()
    if model is not None:
        names.watch(model)
    return Wires(read(wiring), names)


class Three(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 3)


def bucket(model: nn.Module) -> list[torch.Tensor]:
    return list(model.parameters())


def identities(chosen: Wires, parameters: list[torch.Tensor]) -> list[int]:
    elements = sum(each.numel() for each in parameters)
    pieces = chosen.pieces(parameters, elements)
    coded = [piece.coded for piece in pieces]
    return [each.naming.identity for each in coded if each and each.naming]


def test_exact_takes_no_part_in_any_of_it() -> None:
    assert wires("exact").is_exact
    assert not wires("int8").is_exact
    assert wires("exact").coded(torch.ones(3), None, "mean", "w") is None


def test_one_wire_for_all_leaves_a_bucket_whole() -> None:
    model = Three()
    (piece,) = wires("int8", model).pieces(bucket(model), 31)
    assert (piece.start, piece.stop) == (0, 31)
    assert piece.coded is not None
    assert piece.coded.wire == Wire("int8")
    assert piece.coded.naming is not None
    assert piece.coded.naming.lasting
    assert piece.coded.naming.text.startswith("mean of first.weight (4, 3); first.bias (4,)")


def test_neighbours_of_one_wire_stay_together() -> None:
    model = Three()
    rules = [("first.*", "int8"), ("*.bias", "exact"), ("*", "bf16")]
    pieces = wires(rules, model).pieces(bucket(model), 31)
    found = [(each.start, each.stop, each.coded and each.coded.wire.name) for each in pieces]
    assert found == [(0, 16, "int8"), (16, 28, "bf16"), (28, 31, None)]
    assert [each.shapes for each in pieces] == [((4, 3), (4,)), ((3, 4),), ((3,),)]


def test_what_no_pattern_matches_goes_exact() -> None:
    model = Three()
    (piece,) = wires([("other.*", "int8")], model).pieces(bucket(model), 31)
    assert piece.coded is None


def test_what_has_no_name_goes_exact_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    chosen, model = wires([("*", "int8")]), Three()
    for _ in range(3):
        (piece,) = chosen.pieces(bucket(model), 31)
        assert piece.coded is None
    (record,) = caplog.records
    assert "a parameter has no name, so no rule holds for it" in record.message
    assert "connect(model=...)" in record.message


def test_a_function_is_asked_for_each_parameter() -> None:
    asked: list[Parameter] = []

    def rule(parameter: Parameter) -> str:
        asked.append(parameter)
        return "exact"

    model = Three()
    wires(rule, model).pieces(bucket(model), 31)
    assert asked[1] == Parameter("first.bias", (4,), torch.float32)
    assert len(asked) == 4


def test_a_function_that_says_nonsense_is_told_so() -> None:
    model = Three()
    with pytest.raises(ValueError, match=r"expected a wire of .* got 'int7'"):
        wires(lambda _: "int7", model).pieces(bucket(model), 31)


def test_another_bucket_has_another_identity() -> None:
    model = Three()
    chosen, parameters = wires("topk", model), bucket(model)
    cuts = [parameters, parameters[:2], parameters[2:], parameters[::-1], parameters[:1]]
    found = [identities(chosen, cut)[0] for cut in cuts]
    assert len(set(found)) == len(found)


def test_the_same_names_mean_the_same_in_another_process() -> None:
    one, other = Three(), Three()
    assert identities(wires("topk", one), bucket(one)) == identities(
        wires("int8", other), bucket(other)
    )


def test_what_has_no_name_is_numbered_once() -> None:
    model = Three()
    chosen = wires("topk")
    first = identities(chosen, bucket(model))
    assert identities(chosen, bucket(model)) == first
    del model
    gc.collect()
    other = Three()
    assert identities(chosen, bucket(other)) != first, "never the number of one that is gone"
    assert not any(naming.lasting for naming in chosen.known.values())


def test_a_buffer_that_is_not_its_parameters_in_a_row_is_left_whole_and_exact() -> None:
    model = Three()
    (piece,) = wires([("*", "int8")], model).pieces(bucket(model), 999)
    assert piece.coded is None
    assert (piece.start, piece.stop) == (0, 999)


@pytest.mark.parametrize(("elements", "wire"), [(1023, None), (1024, Wire("topk"))])
def test_a_small_tensor_by_itself_goes_exact_unless_the_call_says_otherwise(
    elements: int, wire: Wire | None
) -> None:
    chosen, tensor = wires("topk"), torch.ones(elements)
    coded = chosen.coded(tensor, None, "sum", None)
    assert (coded and coded.wire) == wire
    asked = chosen.coded(tensor, "int8", "sum", None)
    assert asked is not None
    assert asked.wire == Wire("int8")


def test_ops_and_shapes_tell_tensors_of_one_name_apart() -> None:
    chosen = wires("topk")
    found = {
        coded.naming.identity
        for op in ("mean", "sum")
        for size in (3, 4)
        if (coded := chosen.coded(torch.ones(size), "topk", op, "w")) and coded.naming
    }
    assert len(found) == 4
