"""The command that runs published tables again."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "reproduce"


def reproduce(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "run.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("experiment", "expected"),
    [
        ("cmudict", "no cmudict-0.7b.train in it; it is from https://github.com/HaisongDing/CNTK"),
        ("greek-english", "whl in it; it is from pip download --no-deps bible_alignments==0.4.2"),
        ("nmt-tips", "it is from https://github.com/neubig/nmt-tips, commit c81d8b4"),
    ],
)
def test_missing_data_are_named_with_their_source(
    experiment: str, expected: str, tmp_path: Path
) -> None:
    done = reproduce(experiment, "--data", tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 1
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_other_data_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cmudict-0.7b.train").write_text("A  AH\n")
    done = reproduce("cmudict", "--data", tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 1
    assert "cmudict-0.7b.train has another SHA-256; it is from" in done.stderr


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small corpus in the place of nmt-tips."""
    monkeypatch.syspath_prepend(FOLDER)
    import sources

    folder = tmp_path / "clone" / "data"
    folder.mkdir(parents=True)
    sums = []
    for part in ("train", "dev", "test"):
        for side, line in (("ja", "a b c\nd e f\na b c\nd e f\n"), ("en", "x y\nz y q\n" * 2)):
            (folder / f"{part}.{side}").write_text(line)
            digest = hashlib.sha256(line.encode()).hexdigest()
            sums.append(f"{digest}  nmt-tips/{part}.{side}\n")
    (tmp_path / "SHA256SUMS").write_text("".join(sums))
    monkeypatch.setattr(sources, "CHECKSUMS", tmp_path / "SHA256SUMS")
    return tmp_path / "clone"


@pytest.mark.slow
def test_a_table_is_run_once_and_goes_on(corpus: Path, tmp_path: Path) -> None:
    from experiments import nmt_tips
    from lab import Lab

    out = tmp_path / "out"
    flags = ["--training.updates", "2", "--training.validate_every", "1"]
    nmt_tips(Lab(out, corpus, ["dot"], flags))
    names = [f"dot-beam{n}{kind}.json" for n in (1, 10) for kind in ("", "-copied", "-looked-up")]
    for name in names:
        assert json.loads((out / name).read_text())["sources"] == 2
    log = (out / "log.txt").read_text()
    assert str(tmp_path) not in log
    assert log.count("$ luong evaluate") == log.count('"sources": 2') == len(names)
    (out / names[0]).unlink()
    nmt_tips(Lab(out, corpus, ["dot"], flags))
    assert (out / names[0]).is_file()
    log = (out / "log.txt").read_text()
    assert log.count("$ luong evaluate") == len(names) + 1
    assert "this run is finished; there is nothing to do" in log
    with pytest.raises(SystemExit, match="--only: expected some of dot, best; got 'worst'"):
        nmt_tips(Lab(out, corpus, ["worst"], flags))


def test_a_dictionary_has_the_word_linked_most(corpus: Path, tmp_path: Path) -> None:
    from experiments import dictionary

    source, target, links = (tmp_path / name for name in ("s", "t", "l"))
    source.write_text("a b\na\na\n")
    target.write_text("x y\nz\nz\n")
    links.write_text("0-0 0-1 1-1\n0-0\n0-0\n")
    dictionary(links, source, target, tmp_path / "words")
    assert (tmp_path / "words").read_text() == "a\tz\nb\ty\n"
