"""Lines from pipes and files: all of them, once, in order, by their numbers."""

from __future__ import annotations

import io
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luong.toolkit import outputs
from luong.toolkit.command import streams
from luong.toolkit.errors import ToolkitError
from luong.toolkit.torchrun import Process

TEXT = st.lists(st.text("aé\r ☃", max_size=6), max_size=12).map("\n".join)


def expected(text: str, name: str) -> list[tuple[str, str]]:
    lines = text.split("\n")
    lines = lines if lines[-1] else lines[:-1]
    return [(f"{name}:{i}", line.removesuffix("\r")) for i, line in enumerate(lines, 1)]


@settings(max_examples=60, deadline=None)
@given(text=TEXT, count=st.integers(1, 7))
def test_processes_share_all_lines_of_a_file(
    tmp_path_factory: pytest.TempPathFactory, text: str, count: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "shared"
    path.write_bytes(text.encode())
    parts = [
        [line for chunk in streams.share(path, Process(rank, count)) for line in chunk]
        for rank in range(count)
    ]
    assert list(chain.from_iterable(parts)) == expected(text, str(path))


def test_shares_are_of_similar_size(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("".join(f"{i:07}\n" for i in range(10_000)))
    for rank in range(4):
        chunks = list(streams.share(path, Process(rank, 4)))
        assert sum(map(len, chunks)) == 2500
        assert len(chunks) == 1  # as many at a time as fit in a block


class Pipe(io.BytesIO):
    """Gives what it holds in pieces of a few bytes, as a slow writer would."""

    def read1(self, size: int | None = -1) -> bytes:
        return self.read(3)


@given(text=TEXT)
def test_lines_of_a_pipe_come_whole_whatever_its_pieces_are(text: str) -> None:
    found = list(streams.piped(Pipe(text.encode()), "stdin"))
    assert [line for chunk in found for line in chunk] == expected(text, "stdin")


def test_a_line_without_end_is_cut_between_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(streams, "MAX_BYTES", 10)
    stream = Pipe(("ab\n" + "a" + "é" * 500 + "\nc\n" + "x" * 10 + "\n" + "☃" * 40).encode())
    found = list(streams.piped(stream, "stdin"))
    lines = [text for chunk in found for _, text in chunk]
    assert lines == ["ab", "aéééé", "c", "x" * 10, "☃☃☃"]
    reports = capsys.readouterr().err.splitlines()
    assert reports == ["luong: stdin:2: cut to 10 bytes", "luong: stdin:5: cut to 10 bytes"]


def write_half(path: Path) -> None:
    with outputs.joined(path, Process(0, 1)) as file:
        file.write("half")
        raise ToolkitError("bad line")


def test_a_file_is_there_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with outputs.joined(path, Process(0, 1)) as file:
        file.write("é\n")
        assert not path.exists()
    assert path.read_bytes() == "é\n".encode()
    with pytest.raises(ToolkitError):
        write_half(path)
    assert path.read_bytes() == "é\n".encode()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
