"""Input line by line: from a pipe, from the terminal, or a process's share of a file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from luong.toolkit import reading, standard
from luong.toolkit.command import terminal
from luong.toolkit.errors import ToolkitError
from luong.toolkit.reading import BLOCK, MAX_BYTES, Problem, Stream
from luong.toolkit.torchrun import Process

Line = tuple[str, str]  # its name, as `file:3`, and its text


def piped(stream: Stream, name: str) -> Iterator[list[Line]]:
    """Yield lines in groups as they arrive: no line waits for a later one."""
    return _lines(reading.unpacked(stream, name), name)


def typed() -> Iterator[list[Line]]:
    """Yield lines as they are typed at the terminal, until Ctrl-D."""
    terminal.say("type a line and press Enter; Ctrl-D ends")
    for number, text in enumerate(standard.typed("> "), 1):
        yield from _lines([text.encode("utf-8", "surrogateescape") + b"\n"], "stdin", number)


def share(path: Path, process: Process) -> Iterator[list[Line]]:
    """Return the lines of a file that begin in this process's share of its bytes: whole, in
    order.
    """
    if process.size == 1:
        return _lines(reading.blocks(path), str(path))
    if path.exists() and not path.is_file():
        raise ToolkitError(f"{path}: several processes can share a regular file only")
    if reading.is_gzip(path):
        raise ToolkitError(f"{path}: several processes cannot share a compressed file: gunzip it")
    return _shared(path, process)


def _shared(path: Path, process: Process) -> Iterator[list[Line]]:
    with reading.opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        start, end = (
            _boundary(file, size * part // process.size)
            for part in (process.rank, process.rank + 1)
        )
        first = 1 + sum(block.count(b"\n") for block in _blocks(file, 0, start))
        yield from _lines(_blocks(file, start, end), str(path), first)


def _boundary(file: BinaryIO, offset: int) -> int:
    """Return the offset of the first line that begins at `offset` or after it."""
    if offset == 0:
        return 0
    file.seek(offset - 1)
    while (line := file.readline(BLOCK)) and not line.endswith(b"\n"):
        pass
    return file.tell()


def _blocks(file: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    file.seek(start)
    while start < end and (block := file.read(min(BLOCK, end - start))):
        start += len(block)
        yield block


def _lines(parts: Iterable[bytes], name: str, first: int = 1) -> Iterator[list[Line]]:
    """Yield the lines that are complete after each part. A line that is too long is cut off."""
    for lines in reading.split(parts, MAX_BYTES):
        yield from _decoded(lines, name, first)
        first += len(lines)


def _decoded(lines: Iterable[bytes], name: str, first: int) -> Iterator[list[Line]]:
    """Yield all `lines` at once; those before a bad one are not lost with it."""
    named: list[Line] = []
    for number, line in enumerate(lines, first):
        text = reading.decoded(_cut(line, f"{name}:{number}"), name, number)
        if isinstance(text, Problem):
            if named:
                yield named
            raise ToolkitError(str(text))
        named.append((f"{name}:{number}", text))
    yield named


def _cut(line: bytes, where: str) -> bytes:
    if len(line) <= MAX_BYTES:
        return line
    terminal.say(f"{where}: cut to {MAX_BYTES:,} bytes")
    end = MAX_BYTES
    while end and line[end] & 0xC0 == 0x80:  # not inside a character
        end -= 1
    return line[:end]
