"""Command lines as argparse would not have them: whole flags, words after `--`, plain messages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from luong.toolkit.command.cli import main
from luong.toolkit.command.terminal import Parser
from luong.toolkit.errors import UsageError


def parser() -> Parser:
    parser = Parser("try", "An example.")
    parser.add_argument("model", type=Path)
    parser.add_argument("text", nargs="*")
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--ratio", type=float, default=1.0)
    return parser


@pytest.mark.parametrize(
    ("argv", "model", "text", "beam"),
    [
        (["m"], "m", [], 1),
        (["m", "a", "--beam", "2", "b"], "m", ["a", "b"], 2),
        (["--beam", "2", "m", "a"], "m", ["a"], 2),
        (["m", "-5", "-0.5"], "m", ["-5", "-0.5"], 1),
        (["m", "--beam", "-5"], "m", [], -5),
        (["m", "--", "--beam", "-x", "--"], "m", ["--beam", "-x", "--"], 1),
        (["m", "a", "--beam=3", "--", "-h"], "m", ["a", "-h"], 3),
        (["--", "-m", "a"], "-m", ["a"], 1),
    ],
)
def test_options_and_words_in_any_order(
    argv: list[str], model: str, text: list[str], beam: int
) -> None:
    found = parser().parse(argv)
    assert (found.model, found.text, found.beam) == (Path(model), text, beam)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["m", "--bea", "2"], "unrecognized arguments: --bea 2"),
        (["m", "--beam", "many"], "--beam: expected a whole number, got 'many'"),
        (["m", "--beam", "2.5"], "--beam: expected a whole number, got '2.5'"),
        (["m", "--ratio", "half"], "--ratio: expected a number, got 'half'"),
        (["--"], "the following arguments are required: model"),
    ],
)
def test_messages_name_no_types_of_python(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(message)}"):
        parser().parse(argv)


@pytest.mark.parametrize(
    "argv",
    [
        ["train", "g2p-en", "--out", "x", "--max-tim", "2h"],
        ["train", "g2p-en", "--out", "x", "--training.update", "3"],
        ["translate", "m", "--forma", "text"],
        ["align", "m", "--source", "a", "--target", "b", "--outpu", "c"],
        ["score", "m", "--source", "a", "--target", "b", "--jso"],
        ["evaluate", "m", "--dat", "x"],
        ["plot", "m", "--curve"],
        ["check", "x", "--lim", "3"],
    ],
)
def test_no_verb_takes_a_part_of_a_flag(
    argv: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    flag = next(part for part in argv[2:] if part.startswith("--") and part[2:] not in _WHOLE)
    assert re.fullmatch(rf"luong: [^\n]*{re.escape(flag)}[^\n]*\n", err)


_WHOLE = {"out", "source", "target"}


@pytest.mark.parametrize("verb", ["translate", "plot", "check"])
def test_what_follows_two_dashes_is_no_option(
    verb: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([verb, "--", "--json", "--debug"]) == 1
    said = "".join(capsys.readouterr())
    assert "--json: " in said
    assert "unrecognized" not in said
