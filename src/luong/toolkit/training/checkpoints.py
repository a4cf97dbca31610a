"""Checkpoints of training.

A checkpoint is one safetensors file of tensors, whose header has a `TrainingState` and a hash of
the whole content. Nothing in it is unpickled.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from luong.toolkit import files
from luong.toolkit import tensors as tensor_files
from luong.toolkit.errors import ToolkitError
from luong.toolkit.plain import parse_json
from luong.toolkit.text.batches import Place

NAME = re.compile(r"update-(\d{10})\.safetensors")
_DAMAGED = ".damaged"  # added to the name of a checkpoint that was set aside
_OLD = ("finished",)  # fields of older versions


@dataclass
class TrainingState:
    """The state of training, beside the tensors of the model, the optimizer and the average.

    It has no states of random generators, since each update seeds them (`training.randomize`). In
    checkpoints of older versions `dev`, `settings` and `weights` are empty.
    """

    data: str  # the hash of the training data
    dev: str = ""  # the hash of the dev data
    settings: str = ""  # config.yaml
    weights: str = ""  # the hash of the best weights, which model.safetensors holds
    update: int = 0  # updates done
    place: Place = field(default_factory=Place)
    loss: float = 0.0  # summed since the last validation
    tokens: int = 0  # target symbols since the last validation
    rows: list[dict[str, float]] = field(default_factory=list)  # of metrics.csv
    best: list[float] | None = None  # the metric and the loss of the best row, less is better
    best_row: int = -1
    seconds: float = 0.0  # of training, validation not counted

    @property
    def validated(self) -> int:
        """The update of the last validation."""
        return int(self.rows[-1]["update"]) if self.rows else 0

    @property
    def is_best(self) -> bool:
        """Return whether its weights are the best so far, as they are before any validation."""
        return self.best_row == len(self.rows) - 1 and self.validated in (0, self.update)

    def is_done(self, updates: int, patience: int | None) -> bool:
        """Return whether it was validated after the last update, or `patience` times in vain."""
        late = patience is not None and len(self.rows) - 1 - self.best_row >= patience
        return self.validated == self.update > 0 and (self.update >= updates or late)

    @classmethod
    def of(cls, values: object) -> TrainingState:
        """Return the state that was saved as a dictionary. Raises ValueError."""
        if not isinstance(values, dict):
            raise ValueError("its state is no JSON object")
        values = {name: value for name, value in values.items() if name not in _OLD}
        if not {"data", "update", "place"} <= values.keys() <= _FIELDS.keys():
            raise ValueError("its state has other fields than those of a checkpoint")
        for name, value in values.items():
            if not _FIELDS[name](value):
                raise ValueError(f"its state has no sensible {name}")
        state = cls(**values | {"place": Place(*values["place"])})
        if not -1 <= state.best_row < len(state.rows) or state.validated > state.update:
            raise ValueError("its state contradicts itself")
        return state


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _is_list(value: object, item: Callable[[object], bool], length: int | None = None) -> bool:
    return isinstance(value, list) and length in (None, len(value)) and all(map(item, value))


def _is_row(value: object) -> bool:
    return (
        isinstance(value, dict)
        and {"update", "dev_loss"} <= value.keys()
        and all(map(_is_number, value.values()))
    )


def _is_table(value: Any) -> bool:
    return _is_list(value, _is_row) and len({tuple(row) for row in value}) <= 1


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "data": _is_text,
    "dev": _is_text,
    "settings": _is_text,
    "weights": _is_text,
    "update": _is_count,
    "place": lambda value: _is_list(value, _is_count, 2),
    "loss": _is_number,
    "tokens": _is_count,
    "rows": _is_table,
    "best": lambda value: value is None or _is_list(value, _is_number, 2),
    "best_row": lambda value: type(value) is int,
    "seconds": _is_number,
}


class Damaged(ToolkitError):
    """A file that is not a complete checkpoint."""


class Checkpoints:
    """The checkpoints of a run, which keeps the last `keep` of them."""

    def __init__(self, folder: Path, keep: int = 1) -> None:
        self.folder, self.keep = folder, keep

    def paths(self) -> list[Path]:
        """Return the paths of all checkpoints, from the first to the last."""
        return self._named(NAME)

    def save(self, state: TrainingState, tensors: Mapping[str, Tensor]) -> None:
        """Add a checkpoint, then remove those before the last `keep`."""
        self.folder.mkdir(exist_ok=True)
        try:
            tensor_files.save(self.path(state.update), tensors, {"state": asdict(state)})
        except ToolkitError as error:
            last = [old.name for old in self.paths()[-1:]]
            rest = f"{last[0]} is whole, and the same command goes on from it" if last else ""
            raise ToolkitError("; ".join(filter(None, [str(error), rest]))) from error
        for old in self.paths()[: -self.keep]:
            old.unlink()

    def state(self) -> TrainingState | None:
        """Return the state in the last checkpoint, if there is one. Its hash is not compared."""
        if not self.paths():
            return None
        with _opened(self.paths()[-1]) as (_, state):
            return state

    def load(
        self, expected: Mapping[str, Tensor] | None = None, *, update: int | None = None
    ) -> tuple[TrainingState, dict[str, Tensor]]:
        """Return the last checkpoint, or that of an update.

        Raises `Damaged` where it is not whole, and refuses tensors of other names, dtypes and
        shapes than `expected`, which may be on meta.
        """
        path = self.paths()[-1] if update is None else self.path(update)
        with _opened(path) as (stored, state):
            if expected is not None:
                stored.expect(expected)
            return state, stored.read()

    def set_damaged_aside(self) -> list[str]:
        """Rename the damaged checkpoints at the end. Return a message for each."""
        damaged = list[tuple[Path, Damaged]]()
        for path in reversed(self.paths()):
            try:
                self.load(update=_update(path))
                break
            except Damaged as error:
                damaged.append((path, error))
        else:
            if damaged:
                raise ToolkitError(
                    f"{damaged[0][1]}; no checkpoint is whole, so that this training cannot go on: "
                    "choose another --out"
                )
        for path, _ in damaged:
            path.replace(path.with_name(path.name + _DAMAGED))
        return [f"{error}; set aside as {path.name}{_DAMAGED}" for path, error in damaged]

    def lost_after(self, update: int) -> bool:
        """Return whether a later checkpoint has been set aside."""
        names = self._named(re.compile(NAME.pattern + re.escape(_DAMAGED)))
        return any(_update(path) > update for path in names)

    def path(self, update: int) -> Path:
        return self.folder / f"update-{update:010d}.safetensors"

    def _named(self, pattern: re.Pattern[str]) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if pattern.fullmatch(path.name))


def _update(path: Path) -> int:
    return int(path.name[len("update-") :][:10])


@contextmanager
def _opened(path: Path) -> Iterator[tuple[tensor_files.Stored, TrainingState]]:
    """Open a checkpoint and read its header; a file that is not whole raises `Damaged`."""
    with files.opened(path):  # a file that cannot be opened may be intact
        pass
    try:
        with tensor_files.opened(path) as stored:
            values = stored.about.get("state")
            if isinstance(values, str):  # of an older version
                values = parse_json(values.encode())
            state = TrainingState.of(values)
            if state.update != _update(path):
                raise ValueError(f"it is of update {state.update:,}")
            yield stored, state
    except ValueError as error:
        raise Damaged(f"{path}: not a checkpoint, or damaged ({error})") from error
    except ToolkitError as error:
        raise Damaged(str(error)) from error
