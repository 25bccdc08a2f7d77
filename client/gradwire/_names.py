"""What a model's parameters are called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn.parallel import DistributedDataParallel
from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:
    import torch
    from torch import nn


class Names:
    """The parameters of models that are being watched, as long as they live."""

    def __init__(self) -> None:
        self._names: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._models = 0
        self._given: set[str] = set()
        """Also to what is gone: another must not inherit from it."""

    def watch(self, model: nn.Module) -> None:
        """Learn the names of this model's parameters, as the model inside of DDP has them.

        Where another one has, or had, one of these names, all of this one's begin with its
        number, as in "2:fc.weight".

        Raises TypeError for what is no module.
        """
        if not callable(getattr(model, "named_parameters", None)):
            raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}")
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        parameters = list(inner.named_parameters())
        fresh = [each for each in parameters if each[1] not in self._names]
        self._models += bool(fresh)
        clash = any(name in self._given for name, _ in fresh)
        for name, parameter in fresh:
            # Two models of one kind: what belongs to one must never go to the other.
            given = f"{self._models}:{name}" if clash else name
            self._names[parameter] = given
            self._given.add(given)

    def of(self, parameter: torch.Tensor) -> str | None:
        """Its name; None where no model that is watched has it."""
        name: str | None = self._names.get(parameter)
        return name

    def items(self) -> list[tuple[str, torch.Tensor]]:
        """All names and parameters, in the order of their models."""
        return [(name, parameter) for parameter, name in self._names.items()]
