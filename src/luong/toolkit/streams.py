"""What comes in line by line, and the files that go out; shared by several processes."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO, TextIO

from luong.toolkit import reading, standard, terminal
from luong.toolkit.errors import ToolkitError, UsageError
from luong.toolkit.files import whole
from luong.toolkit.reading import BLOCK, MAX_BYTES, Problem, Stream
from luong.toolkit.torchrun import ALONE, Process

Line = tuple[str, str]  # its name, as `file:3`, and its text
_STANDARD = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
_MOST_LINKS = 40  # as Linux


def piped(stream: Stream, name: str) -> Iterator[list[Line]]:
    """Lines, as many at a time as are there: none waits for others."""
    return _lines(reading.unpacked(stream, name), name)


def typed() -> Iterator[list[Line]]:
    """Lines as they are typed at the terminal, until Ctrl-D."""
    terminal.say("type a line and press Enter; Ctrl-D ends")
    for number, text in enumerate(standard.typed("> "), 1):
        yield from _lines([text.encode("utf-8", "surrogateescape") + b"\n"], "stdin", number)


def share(path: Path, process: Process) -> Iterator[list[Line]]:
    """The lines of a file that begin in this process's share of its bytes: whole, in order."""
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


@contextmanager
def output(path: Path) -> Iterator[BinaryIO]:
    """A file to write what `path` is to hold.

    A regular file, or the one that a link leads to, is replaced at the end of the `with`, whole.
    Anything else, such as a pipe, a device or /dev/stdout, is written to and stays what it is.
    """
    if _is_regular(path):
        with whole(Path(os.path.realpath(path))) as partial, partial.open("wb") as file:
            yield file
        return
    descriptor = _descriptor(path)
    try:
        with path.open("wb") if descriptor is None else os.fdopen(os.dup(descriptor), "wb") as file:
            yield file
    except BrokenPipeError:  # its reader has gone: nobody to tell
        raise
    except OSError as error:
        raise ToolkitError(f"{path}: not written: {error.strerror}") from error


@contextmanager
def destination(path: Path | None, process: Process = ALONE) -> Iterator[TextIO]:
    """Where results go: to the file of `--output`, or to stdout."""
    if path is None:
        yield sys.stdout
    else:
        with joined(path, process) as file:
            yield file


@contextmanager
def joined(path: Path, process: Process) -> Iterator[TextIO]:
    """A file to write this process's part to; `path` holds the parts of all, when all are done."""
    if process.size == 1:
        with output(path) as file, _text(file) as text:
            yield text
        return
    if not _is_regular(path):
        raise UsageError(f"--output {path}: several processes can write to a regular file only")
    path = Path(os.path.realpath(path))
    parts = [path.with_name(f"{path.name}.part{i}") for i in range(process.size)]
    mine = parts[process.rank]
    try:
        with mine.open("wb") as file, _text(file) as text:
            yield text
    except BaseException:
        mine.unlink(missing_ok=True)
        raise
    _meet()
    if process.rank == 0:
        try:
            with whole(path) as partial, partial.open("wb") as complete:
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
    """The number of the open file that a path such as /dev/stdout or /dev/fd/3 stands for."""
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


def _meet() -> None:
    """Wait until all processes are here. (Where one fails, torchrun ends the others.)"""
    from torch import distributed

    distributed.init_process_group("gloo", timeout=timedelta(days=30))
    distributed.barrier()
    distributed.destroy_process_group()


def _boundary(file: BinaryIO, offset: int) -> int:
    """Where the first line begins that does not begin before `offset`."""
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
    """The lines that are complete after each part. What is too long of a line is cut off."""
    for lines in reading.split(parts, MAX_BYTES):
        yield from _decoded(lines, name, first)
        first += len(lines)


def _decoded(lines: Iterable[bytes], name: str, first: int) -> Iterator[list[Line]]:
    """All `lines` at once; those before a bad one are not lost with it."""
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
