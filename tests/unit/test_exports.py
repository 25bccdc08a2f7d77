"""The front door: everything public is there, and opening it costs nothing."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import gradwire
from gradwire import _errors

PUBLIC_HOMES = ("_connect", "_errors", "_hook", "_session")


def test_every_public_name_is_what_its_module_defines() -> None:
    for name in gradwire.__all__:
        found = getattr(gradwire, name)
        assert found.__module__.startswith("gradwire._")
        assert found is getattr(import_module(found.__module__), name)
        assert inspect.getdoc(found), f"{name} promises nothing"


def test_all_errors_are_exported_and_are_gradwire_errors() -> None:
    errors = {
        name: value
        for name, value in vars(_errors).items()
        if inspect.isclass(value) and value.__module__ == _errors.__name__
    }
    assert set(errors) <= set(gradwire.__all__)
    assert all(issubclass(error, gradwire.GradwireError) for error in errors.values())


def test_the_list_is_sorted_and_complete_for_dir() -> None:
    assert list(gradwire.__all__) == sorted(gradwire.__all__)
    assert set(gradwire.__all__) <= set(dir(gradwire))


def test_a_name_that_does_not_exist_is_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'all_gather'"):
        _ = gradwire.all_gather


def test_every_module_of_the_client_but_the_front_door_is_private() -> None:
    folder = Path(gradwire.__file__).parent
    assert all(path.name.startswith("_") for path in folder.glob("*.py"))


def test_importing_the_package_imports_neither_torch_nor_grpc() -> None:
    script = "import sys, gradwire; print(*{'torch', 'grpc', 'google'} & set(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout.split() == []
