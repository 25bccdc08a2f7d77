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

    def watch(self, model: nn.Module) -> None:
        """Learn the names of this model's parameters, as the model inside of DDP has them.

        Raises TypeError for what is no module.
        """
        if not callable(getattr(model, "named_parameters", None)):
            raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}")
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        for name, parameter in inner.named_parameters():
            self._names[parameter] = name

    def of(self, parameter: torch.Tensor) -> str | None:
        """Its name; None where no model that is watched has it."""
        name: str | None = self._names.get(parameter)
        return name

    def items(self) -> list[tuple[str, torch.Tensor]]:
        """All names and parameters, in the order of their models."""
        return [(name, parameter) for parameter, name in self._names.items()]
