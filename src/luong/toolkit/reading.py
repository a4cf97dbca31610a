"""Lines of UTF-8 text from files and pipes, plain or compressed by gzip, in bounded memory."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Protocol

from luong.toolkit.errors import ToolkitError

MAX_BYTES = 1 << 18  # default limit of a line, in bytes
BLOCK = 1 << 16
_GZIP = b"\x1f\x8b"  # UTF-8 text never begins with these bytes
_RATIO = 50  # text unpacks to 3 to 20 times its size
_FREE = 1 << 20  # bytes that a file of any size may unpack to


class Problem(NamedTuple):
    """The reason why a line is bad."""

    where: str  # file:line
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


class Stream(Protocol):
    """A source of bytes, such as `sys.stdin.buffer`."""

    def read1(self, size: int, /) -> bytes: ...


def blocks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file or pipe, unpacked if it is compressed. Errors name it."""
    with opened(path) as file:
        yield from unpacked(file, str(path))


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """Open a file or pipe and do not unpack it. Errors name it."""
    with naming(str(path)):
        try:
            file = path.open("rb")
        except ValueError as error:  # the name holds NUL or is not Unicode
            raise ToolkitError(f"{path}: no file can have this name") from error
        with file:
            if _endless(file):
                raise ToolkitError(f"{path}: expected a file of lines, this is a device")
            yield file


def unpacked(stream: Stream, name: str) -> Iterator[bytes]:
    """Yield the bytes of a stream as they arrive, and unpack them if they are gzip data."""
    with naming(name):
        parts = iter(lambda: stream.read1(BLOCK), b"")
        first = next(parts, b"")
        if first == _GZIP[:1]:  # a slow pipe
            first += next(parts, b"")
        parts = chain([first], parts)
        yield from _gunzipped(parts, name) if first.startswith(_GZIP) else parts


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Make errors of reading in the block name what was read."""
    try:
        yield
    except (EOFError, zlib.error) as error:
        raise ToolkitError(f"{name}: damaged gzip data ({error})") from error
    except OSError as error:
        raise ToolkitError(f"{name}: {error.strerror or error}") from error


def is_gzip(path: Path) -> bool:
    """Return whether a file is compressed."""
    with opened(path) as file:
        return file.read(len(_GZIP)) == _GZIP


def split(parts: Iterable[bytes], limit: int = MAX_BYTES) -> Iterator[list[bytes]]:
    """Yield, after each part, the lines that it completes, without "\\n".

    A line of more than `limit` bytes is cut, but stays longer than `limit`.
    """
    rest = bytearray()
    for part in parts:
        first, *others = part.split(b"\n")
        if len(rest) <= limit:
            rest += first
        if others:
            yield [bytes(rest), *others[:-1]]
            rest = bytearray(others[-1])
    if rest:
        yield [bytes(rest)]


def decoded(line: bytes, name: str, number: int) -> str | Problem:
    """Return a line as text, without a final "\\r" or a BOM; or the reason why it is not text."""
    try:
        text = line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        return Problem(f"{name}:{number}", f"not valid UTF-8 (byte {error.start + 1})")
    return text.removeprefix("\ufeff") if number == 1 else text


def _endless(file: BufferedReader) -> bool:
    """Return whether a file is a device that may never end, such as /dev/zero."""
    status = os.fstat(file.fileno())
    device = stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)
    return device and not file.isatty() and not os.path.samestat(status, Path(os.devnull).stat())


def _gunzipped(parts: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Yield the content of gzip data, up to the size that text could have."""
    packed_size = size = 0
    member = zlib.decompressobj(wbits=31)
    for packed in parts:
        packed_size += len(packed)
        while packed:
            if member.eof:
                packed = packed.lstrip(b"\0")  # padding
                member = zlib.decompressobj(wbits=31) if packed else member
                continue
            part = member.decompress(packed, BLOCK)
            packed = member.unconsumed_tail or member.unused_data
            size += len(part)
            if size > max(_FREE, _RATIO * (packed_size - len(packed))):
                raise ToolkitError(
                    f"{name}: unpacks to more than {_RATIO} times its size, which text does not; "
                    "if it is meant, unpack it first (gunzip)"
                )
            if part:
                yield part
    if not member.eof:
        raise EOFError("it ends too early")
