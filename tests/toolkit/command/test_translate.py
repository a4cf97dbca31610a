"""`luong translate` and `luong score` as people use them."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from training_runs import Run, spell

from luong.seq2seq import Decoding, Sampling
from luong.toolkit.inference.translator import Translator
from rounding import assert_rounded

WRONG, FAILED = 2, 1


def one_line(done: subprocess.CompletedProcess[str], status: int) -> str:
    """The error of a command that failed with `status`."""
    assert done.returncode == status, done
    assert done.stdout == ""
    assert re.fullmatch(r"luong: [^\n]+\n", done.stderr), done.stderr
    return done.stderr


def test_n_best_as_tsv(run: Run, model: Path) -> None:
    options = ("--beam", 4, "--n-best", 3, "--format", "tsv", "--alignments", "pharaoh")
    done = run("translate", model, "abbc", "", *options)
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[:2] for row in rows] == [["1", "1"], ["1", "2"], ["1", "3"], ["2", "1"]]
    assert rows[0][4] == spell("abbc")
    assert re.fullmatch(r"0-0 [12]-1 3-2", rows[0][3])
    scores = [float(row[2]) for row in rows[:3]]
    assert scores == sorted(scores, reverse=True)
    assert rows[3][2:] == ["0.000000", "", "", "0", "[]"]
    done = run("translate", model, "a\té", *options[:2], *options[4:6], "--max-source-length", 3)
    assert done.stdout.split("\t")[4:] == ["0", r'["\t", "é"]' + "\n"]
    done = run("translate", model, "abc", *options[4:6], "--max-source-length", 1)
    assert done.stdout.split("\t")[4:] == ["2", "[]\n"]


def test_n_best_as_json_lines(run: Run, model: Path) -> None:
    options = ("--beam", 4, "--n-best", 2, "--format", "jsonl", "--alignments", "matrix")
    done = run("translate", model, *options, stdin="abbc\n\nü\n".encode())
    first, blank, third = map(json.loads, done.stdout.splitlines())
    assert (first["line"], first["source"], len(first["outputs"])) == (1, "abbc", 2)
    best = first["outputs"][0]
    assert best["text"] == spell("abbc") == " ".join(best["tokens"])
    assert best["finished"] is True
    assert best["source"] == list("abbc")
    assert [round(sum(row), 4) for row in best["weights"]] == [1] * 3
    assert blank["outputs"] == [
        {
            "text": "",
            "tokens": [],
            "score": 0.0,
            "finished": True,
            "source": [],
            "weights": [],
        }
    ]
    assert third["line"] == 3
    assert (third["source"], third["unseen"], third["dropped"]) == ("ü", ["ü"], 0)
    assert (first["unseen"], blank["unseen"]) == ([], [])
    long = run("translate", model, *options[4:6], "--max-source-length", 2, stdin=b"abcde")
    assert json.loads(long.stdout)["dropped"] == 3
    assert "alignment" not in best
    links = json.loads(run("translate", model, "ab", *options[4:6], "--alignments=pharaoh").stdout)
    assert links["outputs"][0]["alignment"] == "0-0 1-1"


def test_words_may_stand_among_options(run: Run, model: Path) -> None:
    done = run("translate", "--beam", 2, model, "ab", "--bf16", "c", "--beam=3", "--", "--d")
    assert done.stdout.splitlines()[:2] == [spell("ab"), spell("c")]
    assert len(done.stdout.splitlines()) == 3
    assert "never seen in training: -" in done.stderr


def test_samples_are_those_of_the_seed(run: Run, model: Path) -> None:
    def drawn(*options: object) -> list[str]:
        options = ("--sample", "--temperature", 3, "--n-best", 4, "--format", "tsv", *options)
        return run("translate", model, "abcde", *options).stdout.splitlines()

    assert len(set(drawn())) == 4
    assert drawn() == drawn("--seed", 1)
    assert drawn() != drawn("--seed", 2)


def test_a_very_long_line_is_cut_and_said_to_be(run: Run, model: Path) -> None:
    long = "abc" * 33_334
    options = ("--max-source-length", 30, "--format", "jsonl")
    done = run("translate", model, *options, stdin=f"ab\n{long}\ndd\n".encode())
    rows = [json.loads(line)["outputs"][0] for line in done.stdout.splitlines()]
    assert [rows[0]["text"], rows[2]["text"]] == [spell("ab"), spell("dd")]
    assert len(rows[1]["tokens"]) <= 70
    assert "luong: stdin:2: cut to 30 of 100,002 source symbols\n" in done.stderr


def test_a_prefix_and_a_dictionary(run: Run, model: Path, tmp_path: Path) -> None:
    done = run("translate", model, "abc", "--prefix", "e e")
    assert done.stdout.startswith("e e ")
    assert "prefix: never seen in training: q" in one_line(
        run("translate", model, "a", "--prefix", "q"), FAILED
    )
    dictionary = tmp_path / "words"
    dictionary.write_text("a\tx\nb\ty\n")
    options = ("--replace-unknown", "--dictionary", dictionary)
    assert run("translate", model, "abc", *options).stdout == f"{spell('abc')}\n"
    dictionary.write_text("a\tx\nb\n")
    message = one_line(run("translate", model, "abc", *options), FAILED)
    assert f"{dictionary}:2: expected source<TAB>target, got 'b'" in message


def test_an_ensemble(run: Run, model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(model, other)
    done = run("translate", model, "--ensemble", other, "abc", "--ensemble", other)
    assert (done.stdout, done.stderr) == (f"{spell('abc')}\n", "")
    (other / "target.json").write_text((other / "target.json").read_text().replace('"a"', '"q"'))
    message = one_line(run("translate", model, "abc", "--ensemble", other), FAILED)
    assert f"{other}: its target vocabulary is not that of {model}" in message


def test_the_beam_is_as_wide_as_the_list(run: Run, model: Path) -> None:
    options = ("--n-best", 3, "--format", "tsv")
    wide = run("translate", model, "abbc", *options, "--beam", 3)
    assert run("translate", model, "abbc", *options).stdout == wide.stdout
    assert len(wide.stdout.splitlines()) == 3


def test_no_ngram_occurs_twice(run: Run, model: Path) -> None:
    long = ("--min-extra", 20, "--max-extra", 20)
    for count, repeated in ((0, True), (2, False)):
        done = run("translate", model, "abcde", *long, "--no-repeat-ngram", count)
        symbols = done.stdout.split()
        pairs = [*pairwise(symbols)]
        assert (len(set(pairs)) < len(pairs)) == repeated


def test_an_input_is_not_overwritten(run: Run, model: Path, tmp_path: Path) -> None:
    source, link = tmp_path / "in", tmp_path / "link"
    source.write_text("abc\n")
    link.symlink_to(source)
    for output in (source, link):
        done = run("translate", model, "--input", source, "--output", output)
        assert f"--output: {output} is read as well: give another file" in one_line(done, WRONG)
        files = ("--source", source, "--target", source)
        done = run("align", model, *files, "--output", output)
        assert f"--output: {output} is read as well" in one_line(done, WRONG)
        done = run("evaluate", model, *files, "--output", output)
        assert f"--output: {output} is read as well" in one_line(done, WRONG)
    assert source.read_text() == "abc\n"
    table = tmp_path / "table"
    table.write_text("abc\ta b c\n")
    done = run("evaluate", model, "--data", table, "--output", table)
    assert f"--output: {table} is read as well" in one_line(done, WRONG)
    assert table.read_text() == "abc\ta b c\n"


def words(count: int) -> str:
    """Lines of many lengths, some of them blank."""
    return "".join(f"{'abcde'[i % 5] * (i % 3)}{'abcde'[: i % 6]}\n" for i in range(count))


def test_a_file_is_the_same_as_a_pipe(run: Run, model: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text(words(1000))
    piped = run("translate", model, stdin=words(1000).encode())
    assert len(piped.stdout.splitlines()) == 1000
    done = run("translate", model, "--input", source, "--output", output)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    assert output.read_text() == piped.stdout
    source.write_bytes(b"abc\n" * 500 + b"\xff\n" + b"abc\n" * 500)
    bad = run("translate", model, "--input", source, "--output", tmp_path / "bad")
    assert f"{source}:501: not valid UTF-8" in one_line(bad, FAILED)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def torchrun(count: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(count), "-m", "luong.toolkit", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_processes_share_a_file_and_keep_its_order(run: Run, model: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text(words(999))
    options = ("--format", "tsv", "--sample", "--n-best", 2, "--temperature", 2)
    done = torchrun(3, "translate", model, "--input", source, "--output", output, *options)
    assert done.returncode == 0, done.stderr
    alone = run("translate", model, *options, stdin=words(999).encode())
    shared = [line.split("\t") for line in output.read_text().splitlines()]
    expected = [line.split("\t") for line in alone.stdout.splitlines()]
    assert len(shared) == len(expected)
    for found, row in zip(shared, expected, strict=True):
        assert [*found[:2], found[3]] == [*row[:2], row[3]]
    sampling = Decoding(n_best=2, sampling=Sampling(temperature=2))
    scores = []
    for dtype in (torch.float32, torch.float64):
        translator = Translator.load(model, dtype=dtype)
        lines = words(100).split("\n")[:-1]
        outputs = translator.search(lines, sampling, batch_size=1, first=1)
        scores.append(torch.tensor([o.score for some in outputs for o in some], dtype=dtype))
    for rows in (shared, expected):  # batches differ, and with them rounding
        printed = torch.tensor([float(row[2]) for row in rows[: len(scores[0])]])
        assert_rounded([printed], [scores[0]], [scores[1]])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


@pytest.mark.slow
def test_a_process_that_fails_ends_all_and_leaves_no_output(model: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.write_bytes(b"abc\n" * 500 + b"\xff\n")
    output = tmp_path / "out"
    done = torchrun(2, "translate", model, "--input", source, "--output", output)
    assert done.returncode != 0
    assert f"luong: {source}:501: not valid UTF-8" in done.stderr
    assert not output.exists()


@pytest.mark.slow
def test_memory_is_bounded_on_an_endless_stream(model: Path) -> None:
    def peak(text: str, count: int) -> int:
        """Bytes, after `count` times `text`."""
        code = (
            "import resource, sys; from luong.toolkit.command.cli import main; "
            f"status = main(['translate', {str(model)!r}, '--max-source-length', '20']); "
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
        )
        command = [sys.executable, "-c", code]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as process:
            assert process.stdin
            assert process.stderr
            for _ in range(count):
                process.stdin.write(text.encode())
            process.stdin.close()
            return int(process.stderr.read().split()[-1]) * 1024

    least = peak("abcde\n" * 10_000, 1)
    assert peak("abcde\n" * 10_000, 8) < least + 2**27
    assert peak("a" * 2**20, 300) < least + 2**27  # one line of 300 MB


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--n-best", "2"], "--n-best and --alignments need --format tsv or --format jsonl"),
        (["--alignments", "pharaoh"], "need --format tsv"),
        (["--alignments", "matrix", "--format", "tsv"], "--alignments matrix needs --format jsonl"),
        (["--beam", "0"], "--beam: expected 1 to 1,000, got 0"),
        (["--beam", "1000000"], "--beam: expected 1 to 1,000, got 1000000"),
        (["--beam", "2.5"], "--beam: expected a whole number, 1 to 1,000, got '2.5'"),
        (["--n-best", "1" + 5000 * "0"], "--n-best: expected a whole number, 1 to 1,000, got '10"),
        (["--length-penalty=-1"], "--length-penalty: expected 0 to 20, got -1"),
        (["--length-penalty=700"], "--length-penalty: expected 0 to 20, got 700"),
        (["--max-ratio=1e18"], "--max-ratio: expected 0 to 100, got 1e18"),
        (["--max-ratio=nan"], "--max-ratio: expected 0 to 100, got nan"),
        (["--max-ratio=1e999"], "--max-ratio: expected 0 to 100, got 1e999"),
        (["--max-ratio=0", "--max-extra=0"], "--max-extra: expected at least 1 where max_ratio"),
        (["--max-extra=9223372036854775807"], "--max-extra: expected 0 to 10,000, got 922337203"),
        (["--min-extra=-1"], "--min-extra: expected 0 to 10,000, got -1"),
        (["--no-repeat-ngram=-1"], "--no-repeat-ngram: expected 0 to 100, got -1"),
        (["--sample", "--temperature=1e-300"], "--temperature: expected 0.01 to 100, got 1e-300"),
        (["--sample", "--top-p=nan"], "--top-p: expected above 0, up to 1, got nan"),
        (["--sample", "--seed=-1"], "--seed: expected 0 to 4,294,967,295, got -1"),
        (["--beam", "2", "--sample"], "--beam: expected 1 where outputs are drawn, got 2"),
        (["--top-k", "2"], "--top-k needs --sample"),
        (["--sample", "--top-p", "0"], "--top-p: expected above 0, up to 1, got 0"),
        (["--dictionary", "d"], "--dictionary needs --replace-unknown"),
        (["--batch-size", "0"], "--batch-size: expected 1 to 10,000, got 0"),
        (["--batch-size", f"{10**18}"], "--batch-size: expected 1 to 10,000, got 1000"),
        (["--max-source-length", "0"], "--max-source-length: expected 1 to 10,000, got 0"),
        (["--output", "no/file"], "--output: no/file: there is no folder no"),
        (["--output", "."], r"--output: expected a file, got the folder \."),
        (["--input", "x", "abc"], "give --input, or what to translate"),
        (["--device", "abacus"], "--device: expected cpu, or a GPU .* got 'abacus'"),
        (["--device", "meta"], "--device: expected cpu, or a GPU .* got 'meta'"),
        (["--device", "cuda:77"], "--device: expected cpu, or a GPU .* got 'cuda:77'"),
        (["--format", "xml"], "format.*xml"),
        (["--beam", "wide"], "--beam: expected a whole number, 1 to 1,000, got 'wide'"),
    ],
)
def test_wrong_settings_are_refused_before_a_model_is_read(
    run: Run, options: list[str], message: str
) -> None:
    assert re.search(message, one_line(run("translate", "no-model", *options), WRONG))


def test_an_input_that_is_not_there(run: Run, model: Path) -> None:
    assert "no-file: No such file" in one_line(
        run("translate", model, "--input", "no-file"), FAILED
    )


def test_score(run: Run, model: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    options = ("--beam", 3, "--n-best", 3, "--format", "jsonl")
    outputs = json.loads(run("translate", model, "abbc", *options).stdout)["outputs"]
    source.write_text("abbc\n" * 3)
    target.write_text("".join(f"{output['text']}\n" for output in outputs))
    done = run("score", model, "--source", source, "--target", target)
    scores = [float(line) for line in done.stdout.splitlines()]
    assert scores == pytest.approx([output["score"] for output in outputs], abs=2e-5)
    symbols = sum(len(output["tokens"]) + 1 for output in outputs)
    perplexity = math.exp(-sum(scores) / symbols)
    found = re.fullmatch(r"luong: 3 pairs, perplexity ([\d.]+) per target symbol\n", done.stderr)
    assert found
    assert float(found[1]) == pytest.approx(perplexity, rel=1e-3)
    rows = run("score", model, "--source", source, "--target", target, "--json").stdout
    for line, output in zip(rows.splitlines(), outputs, strict=True):
        row = json.loads(line)
        assert row["score"] == pytest.approx(sum(row["steps"]), abs=1e-4)
        assert row["tokens"] == [*output["tokens"], None]
    target.write_text("a\n")
    message = one_line(run("score", model, "--source", source, "--target", target), FAILED)
    assert "3 lines" in message
