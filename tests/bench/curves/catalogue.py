"""What is trained, over what, and what is aimed for. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Way: TypeAlias = Literal["gloo", "session", "powersgd"]


@dataclass(frozen=True, slots=True)
class Wire:
    """How gradients are averaged."""

    name: str
    title: str
    way: Way = "session"
    words: str = ""
    """For gradwire.connect(wire=)."""
    most_points: float | None = None
    """What may be lost of the accuracy, in percentage points; None: nothing was aimed for."""
    most_loss: float | None = None
    """What the loss may rise by, as a share of gloo's."""
    within_noise: bool = False
    """What was aimed for is gloo's own result, but for what a seed changes."""


WIRES = (
    Wire("gloo", "plain DDP on gloo", "gloo"),
    Wire("exact", "exact", words="exact", within_noise=True),
    Wire("bf16", "bf16", words="bf16", most_points=0.3, most_loss=0.01),
    Wire("fp16", "fp16", words="fp16"),
    Wire("int8", "int8, feedback", words="int8", most_points=0.3, most_loss=0.01),
    Wire("fp8", "fp8, feedback", words="fp8"),
    Wire("topk", "topk 1 %, feedback", words="topk:ratio=0.01", most_points=1, most_loss=0.03),
    Wire("powersgd", "torch's PowerSGD over grpc", "powersgd"),
)


@dataclass(frozen=True, slots=True)
class Subject:
    """What a network learns."""

    name: str
    title: str
    steps: int
    measure: Literal["accuracy", "loss"]
    grain: float
    """The least difference that says anything: an example of the test, a part of the loss."""
    text: str


DIGITS = Subject(
    "digits",
    "Handwritten digits",
    300,
    "accuracy",
    1 / 599,
    "scikit-learn's 1797 digits, a third of them kept for the test. Two convolutions and two"
    " linear layers, 72 thousand parameters; SGD with momentum, 16 images a rank and step.",
)
TEXT = Subject(
    "text",
    "Characters of English text",
    300,
    "loss",
    0.001,
    "The texts of Python's own help (pydoc_data.topics), 465 thousand characters, the last"
    " tenth kept for the test. A transformer of 4 layers of width 144, one million parameters;"
    " AdamW, two windows of 64 characters a rank and step.",
)
SUBJECTS = (DIGITS, TEXT)


@dataclass(frozen=True, slots=True)
class Run:
    """One training."""

    subject: str
    wire: str
    seed: int
    losses: list[float]
    """Of each step, the mean over the ranks."""
    accuracy: float | None
    loss: float
    """On the test."""
    bytes_per_step: float
    """Sent by a node to the others, on average."""
    counted: bool
    """By the daemons; else worked out."""
    same_bits: bool
    """All ranks ended with the same parameters."""
    seconds: float
