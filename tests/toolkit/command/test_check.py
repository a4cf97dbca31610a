"""`luong check` as people use it: what it prints, and its exit status."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from training_runs import Run

BAD = b'good\tG\n\xff\tb\n"a\t"b\nc\n\td\ne\0\tf\ngood\tG\nsame\tsame\n' + b"x" * 100 + b"\tg"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("check")
    (folder / "bad.tsv").write_bytes(BAD)
    (folder / "good.tsv.gz").write_bytes(gzip.compress("a b\tA\nwort\tвесь мир\n".encode()))
    (folder / "s").write_bytes(b"a\n\nc\nd\n")
    (folder / "t").write_bytes(b"a\n\nC\n")
    (folder / "empty").touch()
    return folder


def parsed(run: Run, *arguments: object, status: int = 0) -> list[dict[str, Any]]:
    done = run("check", "--json", *arguments)
    assert (done.returncode, done.stderr) == (status, "")
    corpora: list[dict[str, Any]] = json.loads(done.stdout)["corpora"]
    return corpora


def test_every_bad_line_is_named(run: Run, folder: Path) -> None:
    path = folder / "bad.tsv"
    done = run("check", path, "--max-length", 50)
    assert done.returncode == 1
    assert done.stderr == ""
    assert done.stdout.splitlines()[:6] == [
        f"{path}:2: not valid UTF-8 (byte 1)",
        f"{path}:4: expected source<TAB>target, neither empty, got 'c'",
        f"{path}:5: expected source<TAB>target, neither empty, got '\\td'",
        f"{path}:6: source holds NUL (character 2)",
        f"{path}:9: source is longer than 50 characters (max_length)",
        f"{path}: 4 pairs, 5 bad lines, 1 repeated pairs, 1 with equal sides",
    ]


def test_a_limit_hides_no_count(run: Run, folder: Path) -> None:
    done = run("check", folder / "bad.tsv", "--limit", 1)
    assert done.returncode == 1
    assert "bad.tsv:2: not" in done.stdout
    assert "bad.tsv:4: " not in done.stdout
    assert "bad.tsv: 3 more bad lines (--limit shows more)\n" in done.stdout
    (report,) = parsed(run, folder / "bad.tsv", "--limit", 0, status=1)
    assert (report["problems"], report["bad_lines"]) == ([], 4)


def test_a_good_corpus_is_summed_up(run: Run, folder: Path) -> None:
    (report,) = parsed(run, folder / "good.tsv.gz")
    assert report == {
        "name": f"{folder}/good.tsv.gz",
        "pairs": 2,
        "bad_lines": 0,
        "problems": [],
        "error": None,
        "repeated": 0,
        "equal": 0,
        "lengths": {
            "source": {
                "characters": {"median": 3, "percentile_95": 4, "longest": 4, "distinct": 7},
                "words": {"median": 1, "percentile_95": 2, "longest": 2, "distinct": 3},
            },
            "target": {
                "characters": {"median": 1, "percentile_95": 8, "longest": 8, "distinct": 9},
                "words": {"median": 1, "percentile_95": 2, "longest": 2, "distinct": 3},
            },
        },
        "mentions": {"source": {}, "target": {}},
    }
    assert re.search(r"\n  target characters +9 +1 +8 +8\n", run("check", report["name"]).stdout)


def test_percentiles(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("".join(f"{'a' * i}\tb\n" for i in range(101, 0, -1)))
    (report,) = parsed(run, tmp_path / "x")
    assert report["lengths"]["source"]["characters"] == {
        "median": 51,
        "percentile_95": 96,
        "longest": 101,
        "distinct": 1,
    }


def test_two_files(run: Run, folder: Path) -> None:
    s, t = folder / "s", folder / "t"
    (report,) = parsed(run, f"{s},{t}", status=1)
    assert report["problems"] == [
        {"where": f"{s}:2", "reason": "is empty"},
        {"where": f"{t}:2", "reason": "is empty"},
    ]
    assert report["bad_lines"] == 1
    assert report["error"].startswith(f"{t}:4: there is no such line: {s} has 4 lines, {t} has 3")
    assert report["pairs"] == 2
    (report,) = parsed(run, f"{t},{t}", status=1)
    assert report["equal"] == report["pairs"] == 2


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("empty", "empty: no pairs in it$"),
        (".", "Is a directory$"),
        ("nowhere", "No such file or directory$"),
        ("s", r"s: no pairs in it \(two files whose lines belong together.*: SOURCE,TARGET\)$"),
        ("s,t,s", "expected FILE or SOURCE,TARGET"),
        ("cmudict:all", "expected cmudict:train"),
    ],
)
def test_what_ends_the_reading_is_said(run: Run, folder: Path, name: str, reason: str) -> None:
    name = name if ":" in name else ",".join(f"{folder}/{part}" for part in name.split(","))
    (report,) = parsed(run, name, status=1)
    assert re.search(reason, report["error"])
    assert report["error"] in run("check", name).stdout.splitlines()


def test_what_corpora_share(run: Run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("a\tA\nb\tB\nb\tB\nc\tC\n")
    (tmp_path / "two").write_text("b\tB\nb\tB\nc\tX\nd\tD\n")
    done = run("check", tmp_path / "one", tmp_path / "two", folder / "good.tsv.gz")
    shared = f"{tmp_path}/two: shares 1 distinct pairs and 2 distinct sources with {tmp_path}/one"
    assert done.stdout.splitlines()[-1] == shared
    assert done.returncode == 0  # worth knowing, not wrong
    done = run("check", tmp_path / "one", tmp_path / "two", "--json")
    assert json.loads(done.stdout)["overlaps"] == [
        {"name": f"{tmp_path}/two", "other": f"{tmp_path}/one", "pairs": 1, "sources": 2}
    ]


def test_a_recipe_stands_for_its_corpora(run: Run, recipe: Path) -> None:
    reports = parsed(run, recipe)
    assert [Path(report["name"]).name for report in reports] == ["train.tsv", "dev.tsv", "test.tsv"]
    assert [report["pairs"] for report in reports[1:]] == [50, 100]
    text = recipe.read_text().replace("data:\n", "data:\n  max_length: 6\n")
    (recipe.parent / "short.yaml").write_text(text)
    assert parsed(run, recipe.parent / "short.yaml", status=1)[1]["bad_lines"] > 0
    parsed(run, recipe.parent / "short.yaml", "--max-length", 100)


def test_what_is_seldom_meant_is_mentioned(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_bytes("a\tb\ncafe\u0301\tA <s> B\nc\rd\t▁A\ncaf\u00e9\tcafe\u0301\n".encode())
    (report,) = parsed(run, path)
    assert report["mentions"] == {
        "source": {
            "decomposed": {"lines": 1, "first": 2},
            "carriage_return": {"lines": 1, "first": 3},
            "composed": {"lines": 1, "first": 4},
        },
        "target": {"reserved": {"lines": 2, "first": 2}},  # NFD only is one form
    }
    done = run("check", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-4:] == [
        f"{path}: sources of 1 pairs have letters with marks as several (NFD); the first is line 2",
        f"{path}: sources of 1 pairs have a CR inside, where only LF or CR LF ends a line; "
        "the first is line 3",
        f"{path}: sources of 1 pairs have letters with marks as one character (NFC); "
        "the first is line 4",
        f"{path}: targets of 2 pairs have <pad>, <s>, </s>, <unk> or ▁, which vocabularies keep "
        "for themselves; the first is line 2",
    ]


def test_the_dictionary_is_in_order(run: Run) -> None:
    reports = parsed(run, "g2p-en")
    assert [report["name"] for report in reports] == [
        "cmudict:train",
        "cmudict:dev",
        "cmudict:test",
    ]
    assert {report["repeated"] for report in reports} == {0}


def test_a_pipe(folder: Path) -> None:
    command = f"{sys.executable} -m luong.toolkit check --json <(cat {folder}/good.tsv.gz)"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
    assert json.loads(done.stdout)["corpora"][0]["pairs"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: corpus"),
        (["x", "--max-length", "0"], "--max-length: expected 1 to 1,000,000,000, got 0"),
        (["x", "--limit=-1"], "--limit: expected 0 to 1,000,000,000, got -1"),
    ],
)
def test_wrong_usage(run: Run, arguments: list[str], message: str) -> None:
    done = run("check", *arguments)
    assert done.returncode == 2
    assert re.fullmatch(r"luong: [^\n]+\n", done.stderr)
    assert message in done.stderr


def test_help_needs_no_heavy_import() -> None:
    code = (
        "import sys; from luong.toolkit.command.cli import main; main(['check', '--help']); "
        "sys.exit(bool({'torch', 'numpy', 'pyarrow', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("usage: luong check")


def test_checking_needs_no_torch(folder: Path) -> None:
    code = (
        "import sys; from luong.toolkit.command.cli import main; "
        f"main(['check', '{folder}/good.tsv.gz']); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
