"""Files that are small and hold much, or never end: a line, a file, bounded memory."""

from __future__ import annotations

import gzip
import io
import os
import time
import tracemalloc
import zlib
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luong.toolkit import reading
from luong.toolkit.command import streams
from luong.toolkit.corpora import parse
from luong.toolkit.errors import ToolkitError
from luong.toolkit.text import corpus, lines
from luong.toolkit.torchrun import Process


def packed(path: Path, part: bytes, count: int) -> Path:
    """A gzip file of `count` times `part`."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(count):
            file.write(part)
    return path


@given(
    lines=st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line)),
    size=st.integers(1, 9),
    limit=st.integers(1, 9),
)
def test_lines_are_those_of_the_bytes_whatever_parts_they_come_in(
    lines: list[bytes], size: int, limit: int
) -> None:
    text = b"".join(line + b"\n" for line in lines) + b"end"
    parts = [text[i : i + size] for i in range(0, len(text), size)]
    found = list(chain.from_iterable(reading.split(parts, limit)))
    assert len(found) == len(lines) + 1
    for line, whole in zip(found, [*lines, b"end"], strict=True):
        if len(whole) <= limit:
            assert line == whole
        else:
            assert len(line) > limit
            assert whole.startswith(line)


@given(st.lists(st.binary(max_size=300), min_size=1), st.integers(1, 50), st.integers(0, 9))
def test_gzip_members_and_padding(members: list[bytes], size: int, padding: int) -> None:
    content = b"".join(gzip.compress(member) + b"\0" * padding for member in members)

    class Slow(io.BytesIO):
        def read1(self, _: int | None = -1) -> bytes:
            return self.read(size)

    assert b"".join(reading.unpacked(Slow(content), "x")) == b"".join(members)


def test_garbage_after_gzip_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(b"a\n") + b"more")
    with pytest.raises(ToolkitError, match=f"^{path}: damaged gzip data"):
        list(reading.blocks(path))


@pytest.mark.parametrize("verb", ["check", "read", "lines"])
@pytest.mark.parametrize("part", [b"a" * 2**19, b"\n" * 2**19], ids=["one line", "newlines"])
def test_what_unpacks_to_more_than_text_does_is_refused(
    tmp_path: Path, verb: str, part: bytes
) -> None:
    path = packed(tmp_path / "x.gz", part, 4)
    read = {
        "check": lambda: sum(1 for _ in corpus.scan(parse(str(path)), 5000)),
        "read": lambda: corpus.read(str(path)),
        "lines": lambda: sum(1 for _ in lines.lines(path)),
    }[verb]
    with pytest.raises(ToolkitError, match=f"^{path}(:1)?: ") as caught:
        read()
    reason = str(caught.value).removeprefix(f"{path}").removeprefix(":1").removeprefix(": ")
    assert reason.startswith(
        (
            "unpacks to more than 50 times its size, which text does not",
            "is longer than 262,144 bytes",
            "expected source<TAB>target",
        )
    )


def test_memory_is_bounded_whatever_a_recipe_allows(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"a" * 2**25)
    tracemalloc.start()
    assert [len(item) for item in corpus.scan(parse(str(path)), 10**12)] == [1]
    with pytest.raises(ToolkitError, match=f"^{path}:1: is longer than 262,144 bytes$"):
        list(lines.lines(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60_000_000


def test_text_that_repeats_itself_is_read(tmp_path: Path) -> None:
    rows = b"".join(b"%d\t%d\n" % (i, i * i) for i in range(10_000))
    path = packed(tmp_path / "x.gz", rows, 20)  # 3 MB
    assert sum(1 for _ in lines.lines(path)) == 200_000


def test_an_endless_device_is_refused(tmp_path: Path) -> None:
    for read in (lines.lines, reading.blocks):
        with pytest.raises(ToolkitError, match=r"^/dev/zero: expected a file of lines, this is a"):
            list(read(Path("/dev/zero")))
    with pytest.raises(ToolkitError, match="this is a device"):
        list(corpus.scan(parse("/dev/urandom"), 5000))
    link = tmp_path / "link"
    link.symlink_to("/dev/zero")
    with pytest.raises(ToolkitError, match=f"^{link}: expected a file of lines"):
        corpus.read(str(link))
    assert list(lines.lines(Path(os.devnull))) == []


def test_a_name_that_no_file_can_have() -> None:
    for name in ("a\0b", "a\udcffb\ud800"):
        with pytest.raises(ToolkitError, match=r"(no file can have this name|No such file)"):
            corpus.read(name)


def test_a_compressed_file_is_translated_as_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress("ab\né\r\n".encode()) + gzip.compress(b"c"))
    found = list(chain.from_iterable(streams.share(path, Process())))
    assert found == [(f"{path}:1", "ab"), (f"{path}:2", "é"), (f"{path}:3", "c")]
    piped = list(chain.from_iterable(streams.piped(io.BytesIO(path.read_bytes()), "stdin")))
    assert [text for _, text in piped] == ["ab", "é", "c"]
    with pytest.raises(ToolkitError, match="several processes cannot share a compressed file"):
        list(streams.share(path, Process(0, 2)))


def test_what_came_before_damage_is_not_lost() -> None:
    content = b"".join(b"%d\n" % zlib.crc32(b"%d" % i) for i in range(50_000))
    stream = io.BytesIO(gzip.compress(content)[:-9])
    found = list[str]()
    with pytest.raises(ToolkitError, match=r"^stdin: damaged gzip data"):  # noqa: PT012
        for chunk in streams.piped(stream, "stdin"):
            found += [text for _, text in chunk]
    assert len(found) > 40_000
    assert found == content.decode().splitlines()[: len(found)]


def test_the_rest_of_a_line_that_is_too_long_costs_no_copies() -> None:
    part = b"a" * 2**16
    start = time.process_time()
    assert len(list(reading.split([part] * 5000, 2**22))) == 1  # 20 GB where each part is joined
    assert time.process_time() - start < 2
