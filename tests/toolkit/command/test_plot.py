"""luong plot"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_runs import Run

from luong.toolkit.command.plot import file_name
from luong.toolkit.inference import pictures
from luong.toolkit.inference.pictures import Picture


@given(st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(["CON.x", "nul", ".."]))
def test_names_of_pictures(text: str) -> None:
    name = file_name(text)
    assert 0 < len(f"{name}.png.partial".encode()) <= 143  # as some encrypted folders have it
    assert name.isprintable()
    assert not set(name) & set('/\\:*?"<>|')
    assert name[0] not in ".-~ "
    assert name[-1] not in ". "
    assert re.fullmatch("(con|prn|aux|nul|com[0-9]|lpt[0-9])([.].*)?", name.casefold()) is None
    assert name == text or re.search("-[0-9a-f]{8}$", name)


def test_names_of_pictures_differ() -> None:
    texts = ["a/b", "a_b", "a\\b", "A_b", "é", "é", "x" * 100, "x" * 101, "curves", "con"]
    names = [unicodedata.normalize("NFC", file_name(text)).casefold() for text in texts]
    assert len(set(names)) == len(texts)
    assert file_name("attention") == "attention"
    assert file_name("is this it") == "is this it"
    assert file_name("../x").startswith("_._x-")


def test_the_command(run: Run, model: Path, tmp_path: Path) -> None:
    forced = run("plot", model, "abc", "--target", "a b", "--out", tmp_path / "f.svg")
    assert (forced.stdout, forced.stderr) == (f"{tmp_path / 'f.svg'}\n", "")
    lines = tmp_path / "lines"
    lines.write_text("abc\n\ndd\n")
    sheet = run("plot", model, "--input", lines, "--out", tmp_path / "s.pdf")
    assert sheet.stdout == f"{tmp_path / 's.pdf'}\n"
    assert sheet.stderr == f"luong: {lines}:2: not drawn: the output is empty\n"
    curves = run("plot", model, "--curves", "--out", tmp_path / "c.png")
    assert (curves.stdout, curves.stderr) == (f"{tmp_path / 'c.png'}\n", "")
    empty = run("plot", model, "", "--out", tmp_path / "e.png")
    assert empty.stderr == "luong: there is nothing to draw: the output is empty\n"
    assert empty.returncode == 1
    away = run("plot", tmp_path / "no model", "abc", "--out", tmp_path / "no" / "x.png")
    folder = tmp_path / "no"
    assert away.stderr == f"luong: {folder / 'x.png'}: there is no folder {folder}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "what to draw: give one of TEXT, --input and --curves"),
        (["a", "--curves"], "what to draw: give one of TEXT, --input and --curves"),
        (["a", "b", "--target", "x"], "--target and --n-best are about one TEXT: give it"),
        (["--input", "f", "--n-best", "2"], "--target and --n-best are about one TEXT: give it"),
        (["a", "--n-best", "2", "--target", "x"], "give --target or --n-best"),
        (["x"] * 101, "a sheet holds at most 100 alignments, not 101"),
        (["x", "--n-best", "101"], "a sheet holds at most 100 alignments, not 101"),
        (["a", "--columns", "0"], "--columns: expected 1 to 1,000, got 0"),
    ],
)
def test_wrong_usage(run: Run, arguments: list[str], message: str) -> None:
    done = run("plot", "model", *arguments)
    assert (done.returncode, done.stderr) == (2, f"luong: {message}\n")


def test_a_link_to_a_picture_stays_a_link(tmp_path: Path) -> None:
    link, picture = tmp_path / "x.svg", tmp_path / "real.svg"
    picture.touch()
    link.symlink_to(picture)
    pictures.save(pictures.figure_of(Picture([[1]], ["a"], ["b"])), link)
    assert link.is_symlink()
    assert picture.read_bytes().startswith(b"<?xml")
