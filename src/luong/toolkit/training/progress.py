"""The messages of training while it runs: lines, a bar that moves, log.txt, TensorBoard."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from luong.toolkit.errors import ToolkitError
from luong.toolkit.standard import printable
from luong.toolkit.training.metrics import LABELS

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from luong.toolkit.training.checkpoints import TrainingState

_MEMORY = 0.98  # decay of the loss that is shown
_EVERY = 60.0  # most seconds between two lines of progress


def make_console(*, quiet: bool) -> Console:
    return Console(stderr=True, markup=False, highlight=False, soft_wrap=True, quiet=quiet)


class Journal:
    """Write messages to stderr and, after `keep`, to a file, whose failure stops nothing."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._path: Path | None = None

    def keep(self, path: Path) -> None:
        """Write all later messages to a file too."""
        self._path = path

    def say(self, text: str, *, timed: bool = False) -> None:
        """Write a line; on stderr, with the time only if that is asked for."""
        shown = printable(text)
        self.console.print(f"{_now()} {shown}" if timed else shown, markup=False)
        self.note(text)

    def note(self, text: str) -> None:
        """Write a line to the file only."""
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{_now()} {printable(text)}\n")
        except OSError as error:
            path, self._path = self._path, None
            self.say(f"{path}: not written any more: {error.strerror}")


def _now() -> str:
    return datetime.now().isoformat(" ", "seconds")


def require_tensorboard() -> None:
    if find_spec("tensorboard") is None:
        raise ToolkitError(
            "training.tensorboard: tensorboard is not installed: pip install 'luong[tensorboard]'"
        )


class Log(ExitStack):
    """The progress of one training, from where it stands now to its last update."""

    def __init__(
        self, journal: Journal, state: TrainingState, updates: int, tensorboard: Path | None = None
    ) -> None:
        super().__init__()
        self._journal, self._updates, self._first = journal, updates, state.update
        self._bar = self.enter_context(_progress(journal.console))
        self._task = self._bar.add_task(
            "training", total=updates, completed=state.update, loss=math.nan, speed=0.0
        )
        self._writer = self._open(tensorboard, state.update + 1) if tensorboard else None
        self._loss: float | None = None
        self._tokens, self._seconds = 0, 1e-9
        self._line, self._said = "", time.monotonic()

    def _open(self, folder: Path, first: int) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(folder), purge_step=first)
        self.callback(writer.close)
        return writer

    def update(
        self, state: TrainingState, loss: float, tokens: int, seconds: float, rate: float
    ) -> None:
        """Take note of updates: their loss per token, their tokens, their time, their rate."""
        self._tokens += tokens
        self._seconds += seconds
        self._loss = loss if self._loss is None else _MEMORY * self._loss + (1 - _MEMORY) * loss
        speed = self._tokens / self._seconds
        self._bar.update(self._task, completed=state.update, loss=self._loss, speed=speed)
        values = {"loss": loss, "tokens_per_second": tokens / seconds, "learning_rate": rate}
        self._write("train", values, state.update)
        each = self._seconds / max(state.update - self._first, 1)
        left = timedelta(seconds=round(each * (self._updates - state.update)))
        self._line = (
            f"update {state.update:,} of {self._updates:,}: loss {self._loss:.4f}, learning rate "
            f"{rate:.3g}, {speed:,.0f} tokens/s, {left} left"
        )
        if time.monotonic() - self._said >= _EVERY:
            self.progress()

    def progress(self) -> None:
        """Show the progress, as a line if there is no bar."""
        if not self._line:
            return
        if self._journal.console.is_terminal:
            self._journal.note(self._line)
        else:
            self._journal.say(self._line, timed=True)
        self._line, self._said = "", time.monotonic()

    def validation(self, row: dict[str, float], better: bool) -> None:
        """Take note of a new row of metrics.csv."""
        update = int(row["update"])
        dev = {name[4:]: value for name, value in row.items() if name.startswith("dev_")}
        self._write("dev", dev, update)
        best = " (best so far)" if better else ""
        loss = f"train loss {row['train_loss']:.4f}"
        self._journal.say(f"update {update:,}: {loss}, {measured(row)}{best}")

    def _write(self, group: str, values: dict[str, float], update: int) -> None:
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(f"{group}/{name}", value, update)


def measured(row: dict[str, float]) -> str:
    """Return the dev columns of a row of metrics.csv, as `dev loss 0.1234, PER 5.00`."""
    rates = [f"{LABELS[name]} {row[f'dev_{name}']:.2f}" for name in LABELS if f"dev_{name}" in row]
    return ", ".join([f"dev loss {row['dev_loss']:.4f}", *rates])


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TextColumn("{task.fields[speed]:,.0f} tokens/s"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        disable=not console.is_terminal,
    )
