"""Checkpoints of training.

A checkpoint is one safetensors file: tensors, and in its header a `State` as JSON. Nothing in it is
unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from torch import Tensor

from luong.toolkit import tensors as tensor_files
from luong.toolkit.batches import Place
from luong.toolkit.errors import ToolkitError


@dataclass
class State:
    """Where training is, beside the tensors of the model, the optimizer and the average.

    There are no states of random generators: each update seeds them (`training.randomize`).
    """

    data: str  # what the training data are recognised by
    update: int = 0  # updates done
    place: Place = field(default_factory=Place)
    loss: float = 0.0  # since the last validation, summed over ...
    tokens: int = 0  # ... so many target symbols
    rows: list[dict[str, float]] = field(default_factory=list)  # of metrics.csv
    best: list[float] | None = None  # the metric and the loss of the best row, less is better
    best_row: int = -1
    seconds: float = 0.0  # of training, validation not counted
    finished: bool = False

    @property
    def validated(self) -> int:
        """The update of the last validation."""
        return int(self.rows[-1]["update"]) if self.rows else 0


class Checkpoints:
    """The checkpoints of a run, of which the last `keep` are kept."""

    def __init__(self, folder: Path, keep: int = 1) -> None:
        self.folder, self.keep = folder, keep

    def paths(self) -> list[Path]:
        """From the first to the last."""
        return sorted(self.folder.glob("update-*.safetensors"))

    def save(self, state: State, tensors: Mapping[str, Tensor]) -> None:
        """Add a checkpoint; only then remove those that are too many."""
        self.folder.mkdir(exist_ok=True)
        path = self.folder / f"update-{state.update:010d}.safetensors"
        try:
            tensor_files.save(path, tensors, {"state": asdict(state)})
        except ToolkitError as error:
            last = [old.name for old in self.paths()[-1:]]
            rest = f"{last[0]} is whole, and the same command goes on from it" if last else ""
            raise ToolkitError("; ".join(filter(None, [str(error), rest]))) from error
        for old in self.paths()[: -self.keep]:
            old.unlink()

    def state(self) -> State | None:
        """The state in the last checkpoint, if there is one."""
        return None if not self.paths() else self.load(tensors=False)[0]

    def load(self, *, tensors: bool = True) -> tuple[State, dict[str, Tensor]]:
        """The last checkpoint."""
        path = self.paths()[-1]
        try:
            with tensor_files.opened(path) as file:
                values = file.about["state"]
                if isinstance(values, str):  # an older version
                    values = json.loads(values)
                state = State(**values | {"place": Place(*values["place"])})
                return state, file.read() if tensors else {}
        except (ToolkitError, TypeError, KeyError, ValueError) as error:
            raise ToolkitError(
                f"{path}: not a checkpoint ({error}); without it, training goes on from the one "
                "before"
            ) from error
