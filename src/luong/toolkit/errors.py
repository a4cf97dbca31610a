"""The error that people see: one line, no traceback."""

from collections.abc import Iterator
from contextlib import contextmanager


class ToolkitError(Exception):
    """Something that the person at the keyboard can put right; the message says how."""


class UsageError(ToolkitError):
    """A wrong command line or setting: exit status 2."""


@contextmanager
def needs_toolkit() -> Iterator[None]:
    """Say what to install where an import in the block finds nothing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error.name} is not installed: pip install 'luong[toolkit]'", name=error.name
        ) from None
