"""The errors that the command prints as one line, without a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager


class ToolkitError(Exception):
    """An error that the user can put right; the message says how."""


class UsageError(ToolkitError):
    """An error for a wrong command line or setting, with exit status 2."""


@contextmanager
def needs_toolkit() -> Iterator[None]:
    """Name the extra to install when an import in the block fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error.name} is not installed: pip install 'luong[toolkit]'", name=error.name
        ) from None
