"""The networks, their data and their optimizers. Everything follows from a seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pydoc_data import topics
from typing import TYPE_CHECKING, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradwire_ops.trainer import load_examples, make_network

if TYPE_CHECKING:
    from collections.abc import Iterator

Examples: TypeAlias = tuple[Tensor, Tensor]

DIGITS_TEST_SHARE = 3
"""One example in this many is kept for the test."""
TEXT_TEST_SHARE = 10
WINDOW = 64
SYMBOLS = 96
"""What ASCII prints, and the end of a line."""
WIDTH, LAYERS, HEADS = 144, 4, 4
TEST_WINDOWS = 128


@dataclass(frozen=True, slots=True)
class Score:
    """How well a network does on the test."""

    loss: float
    accuracy: float | None


class Material(Protocol):
    """What a rank needs to train."""

    @property
    def bucket_mb(self) -> float:
        """Of DDP: small, so that there are several buckets."""
        ...

    def network(self) -> nn.Module:
        """Fresh, its parameters from torch's own generator."""
        ...

    def optimizer(
        self, network: nn.Module, steps: int
    ) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
        """For so many steps."""
        ...

    def batches(self, seed: int, rank: int, ranks: int) -> Iterator[Examples]:
        """This rank's share of every step, without an end."""
        ...

    def loss(self, network: nn.Module, batch: Examples) -> Tensor:
        """To be made small."""
        ...

    def score(self, network: nn.Module) -> Score:
        """On what was kept for it."""
        ...


def material(subject: str) -> Material:
    """Of the subject of this name."""
    return Digits() if subject == "digits" else Text()


class Digits:
    """Images of digits. See Material."""

    bucket_mb = 0.1
    _batch = 16

    def __init__(self) -> None:
        training, self._test = load_examples(DIGITS_TEST_SHARE)
        self._images, self._labels = training

    def network(self) -> nn.Module:
        """See Material."""
        return make_network()

    def optimizer(
        self, network: nn.Module, steps: int
    ) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
        """See Material."""
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
        return optimizer, _warm_up_and_down(optimizer, steps)

    def batches(self, seed: int, rank: int, ranks: int) -> Iterator[Examples]:
        """See Material."""
        generator = torch.Generator().manual_seed(seed)
        step = self._batch * ranks
        while True:
            order = torch.randperm(len(self._labels), generator=generator)
            for start in range(0, len(order) - step + 1, step):
                mine = order[start + rank * self._batch :][: self._batch]
                yield self._images[mine], self._labels[mine]

    def loss(self, network: nn.Module, batch: Examples) -> Tensor:
        """See Material."""
        images, labels = batch
        return cross_entropy(network(images), labels)

    @torch.no_grad()
    def score(self, network: nn.Module) -> Score:
        """See Material."""
        images, labels = self._test
        guesses = network(images)
        right = (guesses.argmax(dim=1) == labels).float().mean()
        return Score(cross_entropy(guesses, labels).item(), right.item())


class Text:
    """The next character of a text. See Material."""

    bucket_mb = 1.0
    _batch = 2

    def __init__(self) -> None:
        text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
        codes = torch.frombuffer(bytearray(text, "ascii", "replace"), dtype=torch.uint8).long()
        # 32 to 126 are what is printed; 0 is the end of a line, and whatever else there is.
        symbols = torch.where((codes >= 32) & (codes < 127), codes - 31, 0)
        edge = len(symbols) - len(symbols) // TEXT_TEST_SHARE
        self._training, test = symbols[:edge], symbols[edge:]
        starts = torch.linspace(0, len(test) - WINDOW - 1, TEST_WINDOWS).long()
        self._test = _windows(test, starts)

    def network(self) -> nn.Module:
        """See Material."""
        return Transformer()

    def optimizer(
        self, network: nn.Module, steps: int
    ) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
        """See Material."""
        optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=0.01)
        return optimizer, _warm_up_and_down(optimizer, steps)

    def batches(self, seed: int, rank: int, ranks: int) -> Iterator[Examples]:
        """See Material."""
        generator = torch.Generator().manual_seed(seed)
        last = len(self._training) - WINDOW - 1
        while True:
            starts = torch.randint(0, last, (ranks, self._batch), generator=generator)
            yield _windows(self._training, starts[rank])

    def loss(self, network: nn.Module, batch: Examples) -> Tensor:
        """See Material."""
        before, after = batch
        return cross_entropy(network(before).flatten(0, 1), after.flatten())

    @torch.no_grad()
    def score(self, network: nn.Module) -> Score:
        """See Material."""
        return Score(self.loss(network, self._test).item(), None)


class Transformer(nn.Module):
    """Says of every character which may be the next."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, WIDTH)
        self.places = nn.Embedding(WINDOW, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(LAYERS)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, SYMBOLS)
        for embedding in (self.symbols, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, symbols: Tensor) -> Tensor:
        """Scores of all symbols, for every place."""
        length = symbols.shape[1]
        states: Tensor = self.symbols(symbols) + self.places.weight[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        for layer in self.layers:
            states = layer(states, src_mask=mask, is_causal=True)
        scores: Tensor = self.head(self.norm(states))
        return scores


def _windows(symbols: Tensor, starts: Tensor) -> Examples:
    """Windows, and the same a character later."""
    places = starts.unsqueeze(1) + torch.arange(WINDOW)
    return symbols[places], symbols[places + 1]


def _warm_up_and_down(
    optimizer: torch.optim.Optimizer, steps: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """A tenth of the steps up, then half a cosine down to a twentieth."""
    up = max(steps // 10, 1)

    def share(step: int) -> float:
        if step < up:
            return (step + 1) / up
        return 0.05 + 0.95 * (1 + math.cos(math.pi * (step - up) / max(steps - up, 1))) / 2

    return torch.optim.lr_scheduler.LambdaLR(optimizer, share)
