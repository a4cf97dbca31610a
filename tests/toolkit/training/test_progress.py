"""What training says, on stderr and in log.txt; and that neither can stop it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from training_runs import COMMAND, ENVIRONMENT, assert_same_run, recipe, small, whole_run

from luong.toolkit.config import Training
from luong.toolkit.errors import ToolkitError
from luong.toolkit.training import loop, progress
from luong.toolkit.training.checkpoints import TrainingState
from luong.toolkit.training.loop import ending
from luong.toolkit.training.progress import Journal, Log, make_console

LINE = (
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d update 4 of 5: loss \d\.\d{4}, learning rate 0\.003, "
    r"[\d,]+ tokens/s, \d+:\d\d:\d\d left"
)


def test_without_a_terminal_there_are_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(tmp_path, updates=5, validate_every=4)
    out = whole_run(config, tmp_path / "run")
    said = capsys.readouterr().err.splitlines()
    assert re.fullmatch(LINE, said[1])
    assert said[2].startswith("update 4: train loss ")
    monkeypatch.setattr(progress, "_EVERY", 0.0)
    whole_run(small(tmp_path, updates=5, validate_every=4), tmp_path / "often")
    text = capsys.readouterr().err
    assert len(re.findall(r" update \d of 5: loss", text)) == 5
    kept = (out / "log.txt").read_text().splitlines()
    assert len(kept) == len(said)
    for line, its in zip(said, kept, strict=True):
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d .*", its)
        assert its.endswith(line[20:] if re.match(r"\d{4}-", line) else line)


def test_the_log_is_one_over_several_starts(tmp_path: Path) -> None:
    config, out = small(tmp_path, updates=2), tmp_path / "run"
    loop.train(config, out, seconds=0)
    first = (out / "log.txt").read_text()
    assert "stopped at update 1 (time limit); the same command goes on" in first
    loop.train(config, out)
    second = (out / "log.txt").read_text()
    assert second.startswith(first)
    assert "going on from update 1" in second[len(first) :]
    loop.train(config, out)
    assert (out / "log.txt").read_text() == second  # a finished run is left alone


def test_an_error_is_in_the_log(tmp_path: Path) -> None:
    config, out = small(tmp_path), tmp_path / "run"
    loop.train(config, out, seconds=0)
    lines = Path(config.data.train).read_text().splitlines(keepends=True)
    Path(config.data.train).write_text("".join(lines[:-1]))
    with pytest.raises(ToolkitError):
        loop.train(config, out)
    assert "the training data, or how they are read, have" in (out / "log.txt").read_text()


def test_a_log_that_cannot_be_written_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(make_console(quiet=False))
    journal.keep(tmp_path / "nowhere" / "log.txt")
    journal.say("a\x1b[31m\nb")
    journal.say("c")
    path = tmp_path / "nowhere" / "log.txt"
    said = f"a\\x1b[31m\\nb\n{path}: not written any more: No such file or directory\nc\n"
    assert capsys.readouterr().err == said
    journal.keep(tmp_path / "log.txt")
    journal.say("a\x1b[31m\nb")
    assert (tmp_path / "log.txt").read_text()[20:] == "a\\x1b[31m\\nb\n"


def test_the_time_that_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    state = TrainingState(data="", update=100)
    with Log(Journal(make_console(quiet=False)), state, 400) as log:
        state.update = 110
        log.update(state, 1.5, 500, 20.0, 0.00012345)
        log.progress()
        log.progress()  # nothing new
    line = "update 110 of 400: loss 1.5000, learning rate 0.000123, 25 tokens/s, 0:09:40 left"
    assert capsys.readouterr().err[20:] == f"{line}\n"


STREAMS = {
    "a reader that goes": '2> >(head -n 1 > "$0")',
    "a full disk": "2> /dev/full",
    "all closed": "<&- >&- 2>&-",
}


@pytest.mark.parametrize("streams", STREAMS.values(), ids=STREAMS)
@pytest.mark.slow
def test_stderr_that_fails_stops_nothing(tmp_path: Path, streams: str) -> None:
    config = small(tmp_path)
    once = whole_run(config, tmp_path / "once")
    path = recipe(config, tmp_path / "r.yaml")
    arguments = ("train", str(path), "--out", str(tmp_path / "run"))
    done = subprocess.run(
        ["bash", "-c", f'"$@" {streams}', str(tmp_path / "head"), *COMMAND, *arguments],
        env=ENVIRONMENT,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0
    assert_same_run(once, tmp_path / "run")
    assert "all 31 updates are done" in (tmp_path / "run" / "log.txt").read_text()


def test_the_end_of_the_terminal_loses_nothing(tmp_path: Path) -> None:
    """SIGHUP, after which there is nobody to tell."""
    config = small(tmp_path, updates=40, validate_every=10, checkpoint_every=10**6)
    once = whole_run(config, tmp_path / "once")
    path = recipe(config, tmp_path / "r.yaml")
    reader, writer = os.pipe()
    arguments = [*COMMAND, "train", str(path), "--out", str(tmp_path / "run")]
    with subprocess.Popen(arguments, env=ENVIRONMENT, stderr=writer) as process:
        os.close(writer)
        said = b""
        while b"update 10:" not in said:
            more = os.read(reader, 1000)
            assert more, said
            said += more
        os.close(reader)
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 128 + signal.SIGHUP
    assert "(SIGHUP); the same command goes on" in (tmp_path / "run" / "log.txt").read_text()
    whole_run(config, tmp_path / "run")
    assert_same_run(once, tmp_path / "run")


ROWS = [
    {"update": 10.0, "dev_loss": 1.5, "dev_per": 20.0, "dev_wer": 50.0},
    {"update": 20.0, "dev_loss": 1.0, "dev_per": 10.0, "dev_wer": 25.0},
    {"update": 30.0, "dev_loss": 2.0, "dev_per": 30.0, "dev_wer": 75.0},
    {"update": 35.0, "dev_loss": 2.0, "dev_per": 30.0, "dev_wer": 75.0},
]


def test_the_end_says_what_was_reached(tmp_path: Path) -> None:
    config = small(tmp_path)
    state = TrainingState(data="", update=35, rows=ROWS, best_row=1)
    config.training = Training(updates=1000, patience=2)
    assert ending(state, config, "it's", Path("my runs/a")) == [
        "my runs/a: finished at update 35 of 1,000: 2 validations without a better one "
        "(training.patience)",
        "the best was update 20: dev loss 1.0000, PER 10.00, WER 25.00; its weights are in "
        "my runs/a/model.safetensors",
        "to measure it: luong evaluate 'my runs/a' --data FILE",
        "to use it: luong translate 'my runs/a' 'it'\"'\"'s'",
        "to train it longer: the same command with more --training.patience",
    ]
    config.training = Training(updates=35)
    config.data.test = "test.tsv"
    lines = ending(state, config, "it's", Path("a"))
    assert lines[0] == "a: finished: all 35 updates are done"
    assert lines[2] == "to measure it: luong evaluate a"
    assert lines[4] == "to train it longer: the same command with more --training.updates"
