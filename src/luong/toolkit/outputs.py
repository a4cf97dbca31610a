"""The files that results are written to, by one process or in parts by several."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

from luong.toolkit.errors import ToolkitError, UsageError
from luong.toolkit.files import replacing
from luong.toolkit.torchrun import ALONE, Process

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_STANDARD = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
_MOST_LINKS = 40  # the limit that Linux has
_ALL_STARTED = timedelta(minutes=10)  # time until the last process has started


@contextmanager
def output(path: Path) -> Iterator[BinaryIO]:
    """Open a file whose content becomes that of `path`.

    A regular file, or the one that a link leads to, is replaced at the end of the `with`.
    Anything else, such as a pipe, a device or /dev/stdout, is written to directly.
    """
    if _is_regular(path):
        with replacing(Path(os.path.realpath(path))) as partial, partial.open("wb") as file:
            yield file
        return
    descriptor = _descriptor(path)
    try:
        with path.open("wb") if descriptor is None else os.fdopen(os.dup(descriptor), "wb") as file:
            yield file
    except BrokenPipeError:  # its reader has gone: there is nobody to tell
        raise
    except OSError as error:
        raise ToolkitError(f"{path}: not written: {error.strerror}") from error


@contextmanager
def destination(path: Path | None, process: Process = ALONE) -> Iterator[TextIO]:
    """Give the file that results are written to: that of `--output`, or stdout."""
    if path is None:
        yield sys.stdout
    else:
        with joined(path, process) as file:
            yield file


@contextmanager
def joined(path: Path, process: Process) -> Iterator[TextIO]:
    """Open a file for this process's part; once all are done, `path` holds all parts."""
    if process.size == 1:
        with output(path) as file, _text(file) as text:
            yield text
        return
    if not _is_regular(path):
        raise UsageError(f"--output {path}: several processes can only write to a regular file")
    path = Path(os.path.realpath(path))
    parts = [path.with_name(f"{path.name}.part{i}") for i in range(process.size)]
    mine = parts[process.rank]
    store = _connected()
    try:
        with mine.open("wb") as file, _text(file) as text:
            yield text
    except BaseException:
        mine.unlink(missing_ok=True)
        raise
    _meet(store, process)
    if process.rank == 0:
        try:
            with replacing(path) as partial, partial.open("wb") as complete:
                for part in parts:
                    with part.open("rb") as rest:
                        shutil.copyfileobj(rest, complete, 1 << 20)
        finally:
            for part in parts:
                part.unlink()


def _text(file: BinaryIO) -> TextIOWrapper:
    return TextIOWrapper(file, encoding="utf-8", newline="\n")


def _is_regular(path: Path) -> bool:
    """Return whether `path` is a regular file, or would become one."""
    return _descriptor(path) is None and (path.is_file() or not path.exists())


def _descriptor(path: Path) -> int | None:
    """Return the file descriptor that a path such as /dev/stdout or /dev/fd/3 names."""
    path = path.absolute()
    for _ in range(_MOST_LINKS):
        if str(path) in _STANDARD:
            return _STANDARD[str(path)]
        if match := re.fullmatch(rf"(?:/dev|/proc/(?:self|{os.getpid()}))/fd/(\d+)", str(path)):
            return int(match[1])
        if not path.is_symlink():
            break
        path = path.parent / path.readlink()
    return None


def _connected() -> Store:
    """Return the store through which processes meet, made early so that a wrong address shows."""
    from torch.distributed.rendezvous import rendezvous

    try:
        store: Store = next(rendezvous("env://", timeout=_ALL_STARTED))[0]
    except (RuntimeError, ValueError) as error:
        there = f"MASTER_ADDR={os.environ['MASTER_ADDR']}, MASTER_PORT={os.environ['MASTER_PORT']}"
        reason = str(error).splitlines()[0]
        raise ToolkitError(f"{there}: the processes did not meet: {reason}") from error
    return store


def _meet(store: Store, process: Process) -> None:
    """Wait until all processes get here. (If one fails, torchrun ends the others.)"""
    from torch import distributed

    distributed.init_process_group(
        "gloo", store=store, rank=process.rank, world_size=process.size, timeout=timedelta(days=30)
    )
    distributed.barrier()
    distributed.destroy_process_group()
