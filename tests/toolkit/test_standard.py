"""stdin, stdout and stderr: closed, full, abandoned, of another locale; and what terminals obey."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from training_runs import spell

from luong.toolkit import standard
from luong.toolkit.command.cli import main
from luong.toolkit.errors import ToolkitError

COMMAND = f"{sys.executable} -m luong.toolkit"


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`luong` in bash, for which LUONG stands."""
    return subprocess.run(
        ["bash", "-c", command.replace("LUONG", COMMAND)],
        env=os.environ | environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=120,
    )


def terminal_shows(command: str, *answers: bytes, **environment: str) -> tuple[bytes, int]:
    """What stands on a terminal after a command in bash, and its exit status.

    answers: what is typed at each prompt.
    """
    leader, follower = os.openpty()
    with subprocess.Popen(
        ["bash", "-c", command.replace("LUONG", COMMAND)],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=os.environ | environment,
        start_new_session=True,
    ) as process:
        os.close(follower)
        shown, left = b"", list(answers)
        try:
            while part := os.read(leader, 1 << 16):
                shown += part
                if left and shown.endswith(b"> "):
                    os.write(leader, left.pop(0))
        except OSError:  # nobody has the terminal open any more
            pass
        os.close(leader)
    return shown, process.returncode


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("standard") / "x.tsv"
    path.write_text("a\tb\n")
    return path


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a b é 한 \U0001f600 ‍", "a b é 한 \U0001f600 ‍"),
        ("\x1b]0;title\x07\x1b[2J", "\\x1b]0;title\\x07\\x1b[2J"),
        ("\x00\x08\x0b\x7f\x80\x9b31m\x85", "\\x00\\x08\\x0b\\x7f\\x80\\x9b31m\\x85"),
        ("\u202eabc\u202c\u2066\u2069", "\\u202eabc\\u202c\\u2066\\u2069"),
        ("a\nluong: all is well\r", "a\\nluong: all is well\\r"),
    ],
)
def test_what_a_terminal_obeys_is_shown_instead(text: str, shown: str) -> None:
    assert standard.printable(text) == shown


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "--hypotheses", "x", "--target", "no\x1b[31mfile\n"],
        ["translate", "no\x1b[31mmodel\n", "a"],
        ["fly\x1b[31m\n"],
        ["check", "x", "--limit", "\x1b[31m\n"],
    ],
)
def test_messages_are_escaped(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) != 0
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"luong: [^\x00-\x1f]*\\x1b\[31m[^\x00-\x1f]*\n", err)


def test_results_are_escaped_on_a_terminal_only(corpus: Path) -> None:
    path = corpus.parent / "\x1b[31mx.tsv"
    path.write_text("a\tb\n")
    piped = shell(f"LUONG check '{path}'")
    assert "\x1b[31mx.tsv: 1 pairs" in piped.stdout
    shown, status = terminal_shows(f"LUONG check '{path}'", TERM="dumb")
    assert status == 0
    assert b"\\x1b[31mx.tsv: 1 pairs" in shown
    assert b"\x1b[31m" not in shown


@pytest.mark.parametrize(
    ("ends", "status", "message"),
    [
        (">/dev/full", 1, "luong: stdout: No space left on device\n"),
        (">&-", 1, "luong: stdout: Bad file descriptor\n"),
        ("2>/dev/full", 0, ""),
        ("2>&-", 0, ""),
        ("<&-", 0, ""),
        ("<&- 2>&-", 0, ""),
        ("<&- >&- 2>&-", 1, ""),
    ],
)
@pytest.mark.slow
def test_streams_that_fail(corpus: Path, ends: str, status: int, message: str) -> None:
    if "/dev/full" in ends and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    done = shell(f"LUONG check {corpus} {ends}")
    assert (done.returncode, done.stderr) == (status, message)


def test_a_message_that_nobody_can_read_changes_no_status() -> None:
    assert shell("LUONG check nothing 2>/dev/full").returncode == 1
    assert shell("LUONG check nothing 2>&-").returncode == 1


def test_a_reader_that_has_gone_is_told_nothing(corpus: Path) -> None:
    done = shell(f"(sleep 1; LUONG check {corpus}; echo $? >&2) | true")
    assert done.stderr == "1\n"
    done = shell(f"(sleep 1; LUONG check {corpus} 2>&1 >/dev/null; echo $? >&2) | true")
    assert done.stderr == "0\n"


def test_a_closed_stdin_is_no_empty_one(model: Path) -> None:
    done = shell(f"LUONG translate {model} <&-")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "luong: stdin: Bad file descriptor\n"


def test_a_stream_that_fails_is_named_once_and_then_left() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    with pytest.raises(ToolkitError, match=r"^stdout: No space left on device$"):
        standard.Results(Full()).write("x")
    assert standard.Messages(Full()).write("xyz") == 3


@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
    ],
)
def test_names_and_texts_are_utf8_in_any_locale(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    corpus, recipe = tmp_path / "말뭉치.tsv", tmp_path / "조리법.yaml"
    corpus.write_text("가\t나\n", encoding="utf-8")
    parts = ", ".join(f"{part}: {corpus}" for part in ("train", "dev"))
    recipe.write_text(f"data: {{{parts}}}\n", encoding="utf-8")
    for name in (corpus, recipe):
        done = shell(f"LUONG check '{name}'", **environment)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"{corpus}: 1 pairs" in done.stdout
    done = shell("LUONG check 없는것", **environment)
    assert done.stderr == "luong: 없는것: No such file or directory\n" or "없는것" in done.stdout


def test_a_prompt_answers_each_line_until_the_end(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shown, status = terminal_shows(
        f"LUONG translate {model} > {out}", b"abc\n", b"dd\n", b"\n", b"\x04"
    )
    assert status == 0
    assert out.read_text() == f"{spell('abc')}\n{spell('dd')}\n\n"
    assert b"luong: type a line and press Enter; Ctrl-D ends\r\n> " in shown
    assert shown.count(b"> ") == 4
    shown, status = terminal_shows(f"LUONG translate {model}", b"abc\n", b"\x04", TERM="dumb")
    assert status == 0
    assert f"{spell('abc')}\r\n".encode() in shown


@pytest.mark.slow
def test_no_prompt_without_a_terminal(model: Path) -> None:
    assert shell(f"echo abc | LUONG translate {model}").stderr == ""


@pytest.mark.parametrize(
    "module", ["luong.toolkit.command.translate", "numpy", "torch", "readline"]
)
@pytest.mark.slow
def test_an_interrupt_while_all_is_loaded_is_one_line(model: Path, module: str) -> None:
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in the background
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from luong.toolkit.command.cli import main\n"
        f"sys.argv = ['luong', 'translate', {str(model)!r}]\n"
        "sys.exit(main())\n"
    )
    leader, follower = os.openpty()
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, stdin=follower, capture_output=True, text=True, check=False)
    os.close(leader)
    os.close(follower)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.endswith("luong: interrupted\n")
    assert "Traceback" not in done.stderr
