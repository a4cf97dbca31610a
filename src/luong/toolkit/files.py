"""Files that are read once and within bounds, and written completely or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from luong.toolkit.errors import ToolkitError

PARTIAL = ".partial"
_KINDS = (
    (stat.S_ISREG, "a file"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file to be read; refuse anything else, without waiting for it."""
    try:
        _require_regular(path, path.stat().st_mode)  # opening a device may have effects
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(path, flags), "rb") as file:
            _require_regular(path, os.fstat(file.fileno()).st_mode)  # the file may have changed
            yield file
    except OSError as error:
        raise ToolkitError(f"{path}: {error.strerror or error}") from error


def _require_regular(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise ToolkitError(f"{path}: expected a file, got {kind(mode)}")


def kind(mode: int) -> str:
    """Return what an error calls a file of this mode: a folder, a pipe, a device."""
    return next((name for holds, name in _KINDS if holds(mode)), "something else")


def read(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes."""
    with opened(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ToolkitError(f"{path}: expected at most {most:,} bytes, got more")
    return content


def digest(path: Path) -> str:
    """Return the SHA-256 of a regular file's content, in hexadecimal."""
    found = hashlib.sha256()
    with opened(path) as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path to write to; at the end of the `with` it is synced and renamed to `path`."""
    partial = path.with_name(path.name + PARTIAL)
    try:
        yield partial
        _sync(partial)
        partial.replace(path)
        _sync(path.parent)
    except BaseException as error:
        _remove(partial)
        if isinstance(error, OSError):
            raise ToolkitError(f"{path}: not written: {error.strerror}") from error
        raise


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:  # the error that led here is more useful
        return


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
