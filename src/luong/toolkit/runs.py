"""The folder of a run: whose it is, who is at work in it, and what it shows of a training."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from torch import nn

from luong.toolkit import weights
from luong.toolkit.checkpoints import Checkpoints, State
from luong.toolkit.config import Config
from luong.toolkit.errors import ToolkitError
from luong.toolkit.files import PARTIAL, whole
from luong.toolkit.vocabulary import Vocabulary
from luong.toolkit.weights import Meaning

_LOCK = ".lock"


def is_finished(config: Config, out: Path) -> bool:
    """Whether `out` holds this run, done. An `out` that is no place for this run is refused."""
    if not _content(out):
        return False
    if not (out / "config.yaml").is_file():
        raise ToolkitError(f"{out}: holds something that is not a run; choose another --out")
    differences = Config.of_run(out).differences(config)
    if differences:
        raise ToolkitError(
            f"{out}: holds a run with other settings ({'; '.join(differences)}); "
            "choose another --out, or remove it"
        )
    state = Checkpoints(out / "checkpoints").state()
    if state is None and (out / "model.safetensors").exists():
        raise ToolkitError(
            f"{out}: holds a model, but no checkpoint to go on from; choose another --out, "
            "or remove it"
        )
    return state is not None and state.finished and _shown(out) == _table(state)


@contextmanager
def claimed(config: Config, out: Path) -> Iterator[None]:
    """The folder `out`, made where it is missing, for this run and this process alone.

    A run that fails before its first checkpoint leaves no folder.
    """
    new = not _content(out)
    out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / _LOCK, blocking=False):  # the kernel frees it, however we end
            is_finished(config, out)  # somebody may have been here between that and the lock
            for debris in (*out.glob(f"*{PARTIAL}"), *out.glob(f"*/*{PARTIAL}")):
                debris.unlink()
            if not (out / "config.yaml").exists():
                with whole(out / "config.yaml") as path:
                    config.save(path)
            yield
    except Timeout as error:
        raise ToolkitError(f"{out}: another training is at work in this folder") from error
    except (ToolkitError, OSError):
        if new and Checkpoints(out / "checkpoints").state() is None:
            shutil.rmtree(out, ignore_errors=True)
        raise


def save_vocabularies(out: Path, source: Vocabulary, target: Vocabulary) -> None:
    for name, vocabulary in (("source.json", source), ("target.json", target)):
        with whole(out / name) as path:
            vocabulary.save(path)


def publish(out: Path, state: State, model: nn.Module, meaning: Meaning) -> None:
    """Make the folder show what a checkpoint knows, again if it does already.

    Weights are written where they are the best, or where none were validated yet.
    """
    if state.best_row == len(state.rows) - 1 and state.validated in (0, state.update):
        weights.save(out / "model.safetensors", model, meaning)
    with whole(out / "metrics.csv") as path:  # last: it tells that all has been published
        path.write_text(_table(state), encoding="utf-8")


def _table(state: State) -> str:
    """metrics.csv."""
    text = io.StringIO()
    names = state.rows[0] if state.rows else ("update",)
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(state.rows)
    return text.getvalue()


def _shown(out: Path) -> str | None:
    path = out / "metrics.csv"
    return path.read_text(encoding="utf-8") if path.exists() else None


def _content(out: Path) -> list[Path]:
    """What is in a folder, but for what an attempt to begin may have left."""
    if not out.exists():
        return []
    if not out.is_dir():
        return [out]
    return [path for path in out.iterdir() if path.name != _LOCK and path.suffix != PARTIAL]
