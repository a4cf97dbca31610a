"""The names of the files that a run makes in its folder. It touches no others."""

from __future__ import annotations

import re
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from luong.toolkit import files
from luong.toolkit.errors import ToolkitError
from luong.toolkit.files import PARTIAL
from luong.toolkit.training import checkpoints, preparing

LOCK = ".lock"
LOG = "log.txt"
_FILES = ("config.yaml", "source.json", "target.json", "model.safetensors", "metrics.csv", LOG)
_PARTIAL = f"({re.escape(PARTIAL)})?"
_IN = {  # folders, and what is in them
    "checkpoints": re.compile(checkpoints.NAME.pattern + _PARTIAL),
    "data": re.compile(f"({'|'.join(map(re.escape, preparing.FILES))}){_PARTIAL}|lock"),
    "tensorboard": re.compile(r"events\.out\.tfevents\..*"),
}
_OWN = re.compile(f"({'|'.join(map(re.escape, _FILES))}){_PARTIAL}|{re.escape(LOCK)}")


def is_new(out: Path) -> bool:
    """Return whether a folder holds only what an attempt to begin may have left."""
    return all(
        path.name == LOCK or (path.name.endswith(PARTIAL) and _OWN.fullmatch(path.name))
        for path in (out.iterdir() if out.exists() else ())
    )


def own_files(out: Path) -> Iterator[Path]:
    """Yield all files that have the name of a run's file."""
    yield from _named(out, _OWN)
    for name, pattern in _IN.items():
        yield from _named(out / name, pattern)


def require_own(out: Path) -> None:
    """Refuse links, pipes and other things in the place of a run's files and folders."""
    for folder in (out / name for name in _IN):
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise ToolkitError(f"{folder}: expected a folder, got {_kind(folder)}")
    for path in own_files(out):
        if not stat.S_ISREG(path.lstat().st_mode):
            raise ToolkitError(f"{path}: expected a file, got {_kind(path)}")


def remove_partial(out: Path) -> None:
    """Remove the partial files of a training that was killed."""
    for path in own_files(out):
        if path.name.endswith(PARTIAL):
            path.unlink()


def remove(out: Path, kept: Collection[Path]) -> None:
    """Remove all files of a run except those `kept`, then its empty folders."""
    for path in own_files(out):
        if path not in kept:
            path.unlink(missing_ok=True)
    for folder in (*(out / name for name in _IN), out):
        if folder not in kept:
            with suppress(OSError):  # something else is in it, or it is not there
                folder.rmdir()


def existing(out: Path) -> set[Path]:
    """Return the files that `remove` would remove."""
    return {path for path in (out, *(out / name for name in _IN), *own_files(out)) if path.exists()}


def _named(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if pattern.fullmatch(path.name)]


def _kind(path: Path) -> str:
    return files.kind(path.lstat().st_mode)
