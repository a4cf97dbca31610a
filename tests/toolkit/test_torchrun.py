"""What torchrun says to its processes, and what is said where it is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from luong.toolkit.command.cli import main
from luong.toolkit.errors import UsageError
from luong.toolkit.torchrun import Process, started

ADDRESS = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", *ADDRESS):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("variables", "process"),
    [
        ({}, Process(0, 1, 0)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, Process(0, 1, 0)),
        (
            {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"} | ADDRESS,
            Process(5, 8, 1),
        ),
    ],
)
def test_a_process_knows_its_place(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], process: Process
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert Process.here() == process
    assert started() == ("LOCAL_RANK" in variables)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "x"}, "RANK=x: expected a number from 0, as torchrun sets it"),
        ({"RANK": ""}, "RANK=: expected a number from 0"),
        ({"RANK": "-1"}, "RANK=-1: expected a number from 0"),
        ({"RANK": "²"}, "RANK=²: expected a number from 0"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0: expected a number from 1"),
        ({"LOCAL_RANK": "a"} | ADDRESS, "LOCAL_RANK=a: expected a number from 0"),
        ({"RANK": "1"}, "RANK=1: expected less than WORLD_SIZE, which is 1"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2: expected less than WORLD_SIZE, which is 2"),
        ({"LOCAL_RANK": "0"}, "MASTER_ADDR is not set, but LOCAL_RANK is: torchrun sets both"),
        ({"WORLD_SIZE": "2"}, "MASTER_ADDR is not set, but WORLD_SIZE is: torchrun sets both"),
        ({"LOCAL_RANK": "0", "MASTER_ADDR": "x"}, "MASTER_PORT is not set, but LOCAL_RANK is"),
        ({"LOCAL_RANK": "0"} | ADDRESS | {"MASTER_PORT": "p"}, "MASTER_PORT=p: expected a number"),
    ],
)
def test_a_wrong_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=f"^{re.escape(message)}"):
        Process.here()


def test_verbs_name_a_wrong_variable_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    recipe: Path,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("RANK", "x\x1b")
    for arguments in (
        ["translate", "m", "a"],
        ["train", str(recipe), "--out", str(tmp_path / "r")],
    ):
        assert main(arguments) == 2
        out, err = capsys.readouterr()
        assert (out, err) == (
            "",
            "luong: RANK=x\\x1b: expected a number from 0, as torchrun sets it\n",
        )
    assert list(tmp_path.iterdir()) == []
    assert main(["--version"]) == 0
