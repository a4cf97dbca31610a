"""Lines from pipes and files, in bounded memory; a file's share of each of several processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple, TextIO

from luong.toolkit import terminal
from luong.toolkit.corpus import numbered
from luong.toolkit.errors import ToolkitError

MAX_BYTES = 1 << 18  # of a line
_BLOCK = 1 << 16

Line = tuple[str, str]  # its name, as `file:3`, and its text


class Process(NamedTuple):
    """Which of several processes this is, as torchrun tells it."""

    rank: int
    size: int

    @classmethod
    def here(cls) -> Process:
        return cls(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))


def piped(stream: BufferedReader, name: str) -> Iterator[list[Line]]:
    """Lines, as many at a time as are there: none waits for others."""
    return _lines(iter(lambda: stream.read1(_BLOCK), b""), name)


def share(path: Path, process: Process) -> Iterator[list[Line]]:
    """The lines of a file that begin in this process's share of its bytes: whole, in order."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if process.size > 1 and not path.is_file():
            raise ToolkitError(f"{path}: several processes can share a regular file only")
        start, end = (
            _boundary(file, size * part // process.size)
            for part in (process.rank, process.rank + 1)
        )
        first = 1 + sum(block.count(b"\n") for block in _blocks(file, 0, start))
        blocks = _blocks(file, start, end) if path.is_file() else iter(lambda: file.read1(), b"")
        yield from _lines(blocks, str(path), first)


@contextmanager
def joined(path: Path, process: Process) -> Iterator[TextIO]:
    """A file to write this process's part to; `path` holds the parts of all, when all are done."""
    parts = [path.with_name(f"{path.name}.part{i}") for i in range(process.size)]
    mine = parts[process.rank]
    try:
        with mine.open("w", encoding="utf-8", newline="\n") as file:
            yield file
    except BaseException:
        mine.unlink(missing_ok=True)
        raise
    if process.size > 1:
        _meet()
    if process.rank == 0:
        with mine.open("ab") as whole:
            for part in parts[1:]:
                with part.open("rb") as rest:
                    shutil.copyfileobj(rest, whole, 1 << 20)
                part.unlink()
        mine.replace(path)


def _meet() -> None:
    """Wait until all processes are here. (Where one fails, torchrun ends the others.)"""
    from torch import distributed

    distributed.init_process_group("gloo", timeout=timedelta(days=30))
    distributed.barrier()
    distributed.destroy_process_group()


def _boundary(file: BufferedReader, offset: int) -> int:
    """Where the first line begins that does not begin before `offset`."""
    if offset == 0:
        return 0
    file.seek(offset - 1)
    while (line := file.readline(_BLOCK)) and not line.endswith(b"\n"):
        pass
    return file.tell()


def _blocks(file: BufferedReader, start: int, end: int) -> Iterator[bytes]:
    file.seek(start)
    while start < end and (block := file.read(min(_BLOCK, end - start))):
        start += len(block)
        yield block


def _lines(blocks: Iterable[bytes], name: str, first: int = 1) -> Iterator[list[Line]]:
    """The lines that are complete after each block. What is too long of a line is not kept."""
    rest = b""
    for block in blocks:
        *complete, rest = (rest + block).split(b"\n")
        yield from _decoded(complete, name, first)
        first += len(complete)
        rest = rest[: MAX_BYTES + 1]
    yield from _decoded([rest] if rest else [], name, first)


def _decoded(lines: Iterable[bytes], name: str, first: int) -> Iterator[list[Line]]:
    """All `lines` at once; those before a bad one are not lost with it."""
    named: list[Line] = []
    refused: ToolkitError | None = None
    try:
        for line in numbered(_cut(lines, name, first), name, first):
            named.append(line)  # noqa: PERF402  (keeps what came before an error)
    except ToolkitError as error:
        refused = error
    if named:
        yield named
    if refused:
        raise refused


def _cut(lines: Iterable[bytes], name: str, first: int) -> Iterator[bytes]:
    for number, line in enumerate(lines, first):
        if len(line) <= MAX_BYTES:
            yield line
            continue
        terminal.say(f"{name}:{number}: cut to {MAX_BYTES:,} bytes")
        end = MAX_BYTES
        while end and line[end] & 0xC0 == 0x80:  # not inside a character
            end -= 1
        yield line[:end]
