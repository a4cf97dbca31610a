"""What training tells while it runs: a line that moves, a line a validation, TensorBoard."""

from __future__ import annotations

import math
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from luong.toolkit.errors import ToolkitError
from luong.toolkit.validation import LABELS

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from luong.toolkit.checkpoints import State

_MEMORY = 0.98  # of the loss that is shown


def make_console(*, quiet: bool) -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True, quiet=quiet)


def require_tensorboard() -> None:
    if find_spec("tensorboard") is None:
        raise ToolkitError(
            "training.tensorboard: tensorboard is not installed: pip install 'luong[tensorboard]'"
        )


class Log(ExitStack):
    """The progress of one training, from where it stands now to its last update."""

    def __init__(
        self, console: Console, state: State, updates: int, tensorboard: Path | None = None
    ) -> None:
        super().__init__()
        self._bar = self.enter_context(_progress(console))
        self._task = self._bar.add_task(
            "training", total=updates, completed=state.update, loss=math.nan, speed=0.0
        )
        self._writer = self._open(tensorboard, state.update + 1) if tensorboard else None
        self._loss: float | None = None
        self._tokens, self._seconds = 0, 1e-9

    def _open(self, folder: Path, first: int) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(folder), purge_step=first)
        self.callback(writer.close)
        return writer

    def update(self, state: State, loss: float, tokens: int, seconds: float, rate: float) -> None:
        """Updates were done: their loss per token, their tokens, their time, their rate."""
        self._tokens += tokens
        self._seconds += seconds
        self._loss = loss if self._loss is None else _MEMORY * self._loss + (1 - _MEMORY) * loss
        speed = self._tokens / self._seconds
        self._bar.update(self._task, completed=state.update, loss=self._loss, speed=speed)
        values = {"loss": loss, "tokens_per_second": tokens / seconds, "learning_rate": rate}
        self._write("train", values, state.update)

    def validation(self, row: dict[str, float], better: bool) -> None:
        """A row of metrics.csv was added."""
        update = int(row["update"])
        dev = {name[4:]: value for name, value in row.items() if name.startswith("dev_")}
        self._write("dev", dev, update)
        rates = [f"{LABELS[name]} {dev[name]:.2f}" for name in dev if name != "loss"]
        parts = [f"train loss {row['train_loss']:.4f}", f"dev loss {dev['loss']:.4f}", *rates]
        best = " (best so far)" if better else ""
        self._bar.console.print(f"update {update:,}: {', '.join(parts)}{best}")

    def _write(self, group: str, values: dict[str, float], update: int) -> None:
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(f"{group}/{name}", value, update)


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
    )
