"""The command as people use it: its output, its exit status."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from training_runs import Run, spell

from luong.toolkit.errors import ToolkitError

WRONG = 2
FAILED = 1


def one_line(done: subprocess.CompletedProcess[str], status: int) -> str:
    """The error of a command that failed with `status`."""
    assert done.returncode == status, done
    assert done.stdout == ""
    assert re.fullmatch(r"luong: [^\n]+\n", done.stderr), done.stderr
    return done.stderr


def test_help_lists_every_verb(run: Run) -> None:
    done = run("--help")
    assert done.returncode == 0
    for verb in ("train", "translate", "align", "score", "evaluate", "plot", "check"):
        assert f"\n  {verb} " in done.stdout
        assert run(verb, "--help").stdout.startswith(f"usage: luong {verb}")


def test_help_needs_no_heavy_import() -> None:
    code = (
        "import sys; from luong.toolkit.command.cli import main; main(['--help']); "
        "heavy = {'torch', 'matplotlib', 'accelerate', 'tokenizers'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_version(run: Run) -> None:
    assert re.fullmatch(r"luong \d+\.\d+\.\d+\n", run("--version").stdout)


def test_translate_words_of_the_command_line(run: Run, model: Path) -> None:
    done = run("translate", model, "abc", "", "abbc", "ABC")
    assert done.stdout.splitlines() == [spell("abc"), "", spell("abbc"), spell("abc")]
    assert done.stderr == ""


def test_translate_gives_a_line_for_a_line(run: Run, model: Path) -> None:
    lines = ["abc", "", "e", "abcde" * 3, "   ", "dd"]
    done = run("translate", model, stdin="\n".join(lines).encode())
    out = done.stdout.split("\n")
    assert len(out) == len(lines) + 1
    assert out[0] == spell("abc")
    assert out[1] == ""
    assert out[5] == spell("dd")
    assert done.returncode == 0


def test_translate_answers_before_its_input_ends(model: Path) -> None:
    command = [sys.executable, "-m", "luong.toolkit", "translate", str(model)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        for word in ("abc", "dd"):
            process.stdin.write(f"{word}\n".encode())
            process.stdin.flush()
            assert process.stdout.readline().decode() == f"{spell(word)}\n"


def test_an_unseen_character_is_reported_and_survived(run: Run, model: Path) -> None:
    done = run("translate", model, stdin="abc\naéü\n".encode())
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr == "luong: stdin:2: never seen in training: é ü\n"


def test_an_output_that_is_cut_is_reported(run: Run, model: Path) -> None:
    done = run("translate", model, "x" * 300)
    assert len(done.stdout.splitlines()) == 1
    for report in done.stderr.splitlines():
        assert re.search(r"never seen in training: x$|was cut at \d+ symbols$", report)


def test_what_came_before_a_bad_line_is_not_lost(run: Run, model: Path) -> None:
    done = run("translate", model, stdin=b"abc\ndd\n\xff\nab\n")
    assert done.stdout.splitlines() == [spell("abc"), spell("dd")]
    assert done.stderr == "luong: stdin:3: not valid UTF-8 (byte 1)\n"
    assert done.returncode == FAILED


def test_stdin_takes_windows_line_ends_and_bom(run: Run, model: Path) -> None:
    done = run("translate", model, stdin=b"\xef\xbb\xbfabc\r\ndd\r\n")
    assert (done.stdout.splitlines(), done.stderr) == ([spell("abc"), spell("dd")], "")


def test_a_closed_pipe_ends_quietly(model: Path) -> None:
    command = f"yes abc | head -100000 | {sys.executable} -m luong.toolkit translate {model}"
    done = subprocess.run(
        f"{command} | head -1", shell=True, capture_output=True, check=True, text=True
    )
    assert (done.stdout, done.stderr) == (f"{spell('abc')}\n", "")


def test_evaluate(run: Run, model: Path, recipe: Path) -> None:
    table, parsed = run("evaluate", model), json.loads(run("evaluate", model, "--json").stdout)
    assert parsed["sources"] == 100
    assert f"WER {parsed['wer']:.2f} %   PER {parsed['per']:.2f} %\n" in table.stdout
    source, target = recipe.parent / "s", recipe.parent / "t"
    source.write_text("abc\nabc\ndd\n")
    target.write_text(f"x y z\n{spell('abc')}\nd d d\n")
    files = run("evaluate", model, "--source", source, "--target", target, "--json")
    assert json.loads(files.stdout)["sources"] == 2
    assert json.loads(files.stdout)["wer"] == 50
    assert json.loads(files.stdout)["per"] == pytest.approx(100 * 3 / 6)


def test_plot(run: Run, model: Path, tmp_path: Path) -> None:
    done = run("plot", model, "abc", "--out", tmp_path / "a.svg")
    assert (done.stdout, done.stderr) == (f"{tmp_path / 'a.svg'}\n", "")
    assert (tmp_path / "a.svg").stat().st_size > 1000


def test_train_again_on_a_finished_run(run: Run, model: Path, recipe: Path) -> None:
    done = run("train", recipe, "--out", model)
    assert done.returncode == 0
    assert "is finished" in done.stderr


def test_a_flag_overrides_the_recipe(run: Run, recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = run("train", recipe, "--out", out, "--training.updates", 2, "--model.score", "concat")
    assert done.returncode == 0, done.stderr
    config = (out / "config.yaml").read_text()
    assert "updates: 2\n" in config
    assert "score: concat\n" in config
    assert "hidden_size: 48\n" in config  # from the recipe


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected a verb: train, translate, align, score, evaluate, plot, check"),
        (["fly"], "no verb 'fly'"),
        (["train"], "the recipe comes first"),
        (["train", "--out", "x", "g2p-en"], "the recipe comes first"),
        (["train", "g2p-xx", "--out", "x"], "no recipe 'g2p-xx'.*g2p-en"),
        (["train", "g2p-en"], "required: --out"),
        (["train", "g2p-en", "--out", "x", "--wings", "2"], "--wings"),
        (
            ["train", "g2p-en", "--out", "x", "--training.updates", "0"],
            "training.updates.*at least 1",
        ),
        (["train", "g2p-en", "--out", "x", "--training.updates", "many"], "training.updates.*many"),
        (["train", "g2p-en", "--out", "x", "--training.learning_rate=-1"], "learning_rate.*-1"),
        (["train", "g2p-en", "--out", "x", "--training.learning_rate=nan"], "learning_rate.*nan"),
        (["train", "g2p-en", "--out", "x", "--training.label_smoothing=1"], "label_smoothing"),
        (["train", "g2p-en", "--out", "x", "--model.hidden_size=3"], "hidden_size.*even"),
        (["train", "g2p-en", "--out", "x", "--model.dropout=1"], "model.dropout.*got 1"),
        (["train", "g2p-en", "--out", "x", "--model.score=softest"], "model.score.*softest"),
        (["train", "g2p-en", "--out", "x", "--data.source.level=bits"], "level.*bits"),
        (["evaluate", "x", "--source", "s"], "--source and --target go together"),
        (["evaluate", "x", "--data", "d", "--source", "s", "--target", "t"], "give --data, or"),
        (["translate"], "required: model"),
        (["plot", "x"], "what to draw: give one of TEXT"),
    ],
)
def test_wrong_usage(run: Run, tmp_path: Path, arguments: list[str], message: str) -> None:
    assert re.search(message, one_line(run(*arguments), WRONG))


@pytest.mark.parametrize("name", ["config.yaml", "source.json", "target.json", "model.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "other"])
def test_a_damaged_model_is_named(
    run: Run, model: Path, tmp_path: Path, name: str, damage: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    whole = (folder / name).read_bytes()
    match damage:
        case "missing":
            (folder / name).unlink()
        case "empty":
            (folder / name).write_bytes(b"")
        case "cut":
            (folder / name).write_bytes(whole[: len(whole) // 2])
        case "other":
            (folder / name).write_bytes(b"\xff\x00 {[}")
    message = one_line(run("translate", folder, "abc"), FAILED)
    assert name in message
    assert str(folder) in message


def test_weights_of_another_model_are_refused(run: Run, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("hidden_size: 48", "hidden_size: 50"))
    message = one_line(run("translate", folder, "a"), FAILED)
    assert "model.safetensors: saved with model.hidden_size 48, and " in message


def test_an_unusable_folder(run: Run, recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = one_line(run("train", recipe, "--out", tmp_path / "file" / "run"), FAILED)
    assert "file" in message
    assert "Not a directory" in message
    message = one_line(run("train", recipe, "--out", tmp_path / "file"), FAILED)
    assert message.endswith("file: expected a folder, got a file\n")


@pytest.mark.parametrize(
    "text",
    ["training: {updates: 5", "training: {wings: 2}", "training: {updates: many}", "- a", "\x00"],
)
def test_a_bad_recipe_is_named(run: Run, tmp_path: Path, text: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    assert "recipe.yaml" in one_line(run("train", path, "--out", tmp_path / "run"), WRONG)


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("yaml", ["train", "g2p-en", "--out", "x"]),
        ("tokenizers", ["translate", "MODEL", "a"]),
        ("rapidfuzz", ["evaluate", "MODEL"]),
        ("matplotlib", ["plot", "MODEL", "a"]),
    ],
)
def test_without_the_extra(model: Path, module: str, arguments: list[str]) -> None:
    arguments = [str(model) if a == "MODEL" else a for a in arguments]
    code = (
        f"import sys; sys.modules[{module!r}] = None; "
        f"from luong.toolkit.command.cli import main; sys.exit(main({arguments!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'luong[toolkit]'" in one_line(done, FAILED)


def test_debug_shows_the_traceback(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match=r"no config\.yaml in it"):  # Python shows where from
        run("translate", tmp_path, "a", "--debug")
