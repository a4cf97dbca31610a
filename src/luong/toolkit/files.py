"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from luong.toolkit.errors import ToolkitError

PARTIAL = ".partial"


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write what becomes `path`, and is on the disk, at the end of the `with`."""
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
    except OSError:  # the error that led here says more
        return


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
