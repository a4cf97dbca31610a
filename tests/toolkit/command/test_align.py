"""`luong align`, and the measure of its links by `luong evaluate --gold`."""

from __future__ import annotations

from pathlib import Path

import pytest
from aligned_pairs import PAIRS, WORDS, true_links
from training_runs import Run

from luong.toolkit.inference import alignment, links
from luong.toolkit.inference.translator import Translator


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    source, target = tmp_path / "s", tmp_path / "t"
    source.write_text("".join(f"{pair.source}\n" for pair in PAIRS))
    target.write_text("".join(f"{pair.target}\n" for pair in PAIRS))
    return source, target


def test_the_command(
    run: Run, model: Path, translator: Translator, files: tuple[Path, Path], tmp_path: Path
) -> None:
    done = run("align", model, "--source", files[0], "--target", files[1])
    expected = [links.write(some) for some in alignment.align(translator, PAIRS)]
    assert (done.stdout.splitlines(), done.stderr) == (expected, "")
    assert expected[0] == "0-0 1-1 2-2"
    assert expected[4] == ""
    out, gold = tmp_path / "out", tmp_path / "gold"
    done = run("align", model, "--source", files[0], "--target", files[1], "--output", out)
    assert (done.stdout, done.stderr, out.read_text().splitlines()) == ("", "", expected)

    options = ("--device", "cpu", "--bf16", "--step", "posterior")
    rough = run("align", model, "--source", files[0], "--target", files[1], *options)
    close = zip(rough.stdout.splitlines(), expected, strict=True)
    assert sum(one == other for one, other in close) > len(expected) / 2

    gold.write_text("".join(f"{links.write(true_links(word))}\n" for word in WORDS))
    one = run("evaluate", "--alignments", out, "--gold", gold).stdout.splitlines()
    other = run("evaluate", model, "--source", files[0], "--target", files[1], "--gold", gold)
    assert one[0] == f"{out}: 24 pairs"
    assert (
        one[1]
        == other.stdout.splitlines()[1]
        == ("AER 10.64 %   precision 100.00 %   recall 80.77 %")
    )


def test_files_that_do_not_fit(
    run: Run, model: Path, files: tuple[Path, Path], tmp_path: Path
) -> None:
    files[1].write_text("a\nb\n")
    out = tmp_path / "out"
    done = run("align", model, "--source", files[0], "--target", files[1], "--output", out)
    assert done.returncode == 1
    message = (
        f"{files[1]}:3: there is no such line: {files[0]} has 24 lines, {files[1]} has 2; they "
        "should agree"
    )
    assert done.stderr == f"luong: {message}\n"
    assert not out.exists()
    done = run("evaluate", "--alignments", files[0], "--gold", files[1])
    assert f"{files[0]}:1: expected links" in done.stderr
    out.write_text("0-0\n")
    files[1].write_text("0-0\n0-1\n")
    done = run("evaluate", "--alignments", out, "--gold", files[1])
    message = (
        f"{out}:2: there is no such line: {out} has 1 line, {files[1]} has 2; they should agree"
    )
    assert done.stderr == f"luong: {message}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threshold", "0"], "--threshold: expected above 0, up to 1, got 0"),
        (["--threshold", "nan"], "--threshold: expected above 0, up to 1, got nan"),
        (
            ["--device", "meta"],
            "--device: expected cpu, or a GPU that PyTorch finds here, such as cuda or cuda:1; got "
            "'meta'",
        ),
        (["--threshold", "1.5"], "--threshold: expected above 0, up to 1, got 1.5"),
        (["--batch-size", "0"], "--batch-size: expected 1 to 10,000, got 0"),
        (["--join", "union"], "--join joins two directions: give --reverse"),
    ],
)
def test_wrong_usage(
    run: Run, model: Path, files: tuple[Path, Path], arguments: list[str], message: str
) -> None:
    done = run("align", model, "--source", files[0], "--target", files[1], *arguments)
    assert (done.returncode, done.stderr) == (2, f"luong: {message}\n")
