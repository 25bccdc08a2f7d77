"""Shows how far a training job is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console


class Epochs:
    """A bar where somebody looks on, a line per epoch where the output goes to a file."""

    def __init__(self, name: str, epochs: int, console: Console) -> None:
        self._name = name
        self._epochs = epochs
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[words]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(
            f"training over {name}", total=epochs, words="starting the ranks"
        )

    def __enter__(self) -> Self:
        if not self._console.is_terminal:
            self._console.print(f"training over {self._name}")
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def update(self, epoch: int, loss: float, accuracy: float) -> None:
        """This many epochs are done, with these figures on the test's examples."""
        words = f"loss {loss:.4f}, accuracy {accuracy:.1%}"
        self._bar.update(self._task, completed=epoch, words=words)
        if not self._console.is_terminal:
            line = f"  epoch {epoch}/{self._epochs}: {words}"
            self._console.print(line, highlight=False)
