"""Runs that are stopped, killed, out of space: each ends as if nothing had happened."""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from training_runs import (
    COMMAND,
    ENVIRONMENT,
    assert_same_run,
    last,
    recipe,
    rows,
    small,
    start,
    wait_for,
    whole_run,
)

from luong.toolkit import files
from luong.toolkit.config import Config
from luong.toolkit.errors import ToolkitError
from luong.toolkit.training import learner, loop, run_folder

OPTIONS = {
    "default": {},
    "sgd": {
        "optimizer": "sgd",
        "learning_rate": 0.5,
        "schedule": "halving",
        "decay_start": 4,
        "decay_every": 2,
    },
    "average": {"average": 0.9},
    "tokens": {"batch_unit": "tokens", "batch_size": 40},
    "accumulate": {"accumulate": 2},
    "bf16": {"precision": "bf16"},
    "patience": {"patience": 1, "validate_every": 3, "learning_rate": 1e-9, "metric": "loss"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_stopped_after_every_update(options: dict[str, object], tmp_path: Path) -> None:
    config = small(tmp_path, **{"updates": 9, "validate_every": 4} | options)
    once = whole_run(config, tmp_path / "once")
    for _ in range(10):
        assert loop.train(config, tmp_path / "often", seconds=0) == 0
    assert_same_run(once, tmp_path / "often")


def test_a_time_limit_ends_the_command(tmp_path: Path) -> None:
    config = small(tmp_path, updates=10**6, validate_every=10**6, checkpoint_every=10**6)
    with start(
        recipe(config, tmp_path / "r.yaml"), "--out", tmp_path / "run", "--max-time", "1s"
    ) as process:
        _, error = process.communicate(timeout=60)
    assert process.returncode == 0
    assert re.search(r"stopped at update [\d,]+ \(time limit\); the same command goes on$", error)
    assert (tmp_path / "run" / "model.safetensors").exists()  # usable, though not yet validated


def test_ctrl_c_and_sigterm_save(tmp_path: Path) -> None:
    config = small(tmp_path, updates=120, validate_every=30, checkpoint_every=10**6)
    once = whole_run(config, tmp_path / "once")
    arguments = (recipe(config, tmp_path / "r.yaml"), "--out", tmp_path / "run")
    for number, name, line in (
        (signal.SIGINT, "Ctrl-C", "update 30:"),
        (signal.SIGTERM, "SIGTERM", "update 60:"),
    ):
        with start(*arguments) as process:
            wait_for(process, line)
            process.send_signal(number)
            _, error = process.communicate(timeout=60)
        assert process.returncode == 128 + number
        assert re.fullmatch(
            rf"[^\n]*run: stopped at update \d+ \({name}\); the same command goes on",
            error.strip().splitlines()[-1],
        )
        assert "Traceback" not in error
        assert 30 <= int(last(tmp_path / "run").stem.removeprefix("update-")) < 120
    whole_run(config, tmp_path / "run")
    assert_same_run(once, tmp_path / "run")


def test_ctrl_c_need_not_wait_for_a_validation(tmp_path: Path) -> None:
    config = small(tmp_path)
    once = whole_run(config, tmp_path / "once")
    slow = "loop.validate = lambda *_: (print('now', file=sys.stderr), time.sleep(60))"
    with start(
        recipe(config, tmp_path / "r.yaml"), "--out", tmp_path / "run", code=slow
    ) as process:
        wait_for(process, "now")
        process.send_signal(signal.SIGINT)
        assert "stopped at update 10 (Ctrl-C)" in process.communicate(timeout=30)[1]
    assert process.returncode == 130
    whole_run(config, tmp_path / "run")
    assert_same_run(once, tmp_path / "run")


MOMENTS = {
    "before the first checkpoint": (learner.Learner, "update", 2),
    "in a step": (learner, "cross_entropy", 5),
    "in a validation": (loop, "validate", 1),
    "while a checkpoint is written": (files, "_sync", 9),
    "between a checkpoint and what it publishes": (run_folder, "publish", 2),
    "before the last is published": (run_folder, "publish", 1),
}


def train_and_be_killed(config: Config, out: Path, moment: str) -> None:
    """In a process of its own."""
    torch.set_num_threads(1)
    place, name, left = MOMENTS[moment]
    kept = getattr(place, name)

    def kill(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return kept(*arguments, **options)

    setattr(place, name, kill)
    loop.train(config, out)


def test_killed_at_every_kind_of_moment(tmp_path: Path) -> None:
    config = small(tmp_path)
    once = whole_run(config, tmp_path / "once")
    processes = multiprocessing.get_context("forkserver")  # imports once for all of them
    processes.set_forkserver_preload(["luong.toolkit.training.loop"])
    for moment in MOMENTS:
        arguments = (config, tmp_path / "run", moment)
        process = processes.Process(target=train_and_be_killed, args=arguments)
        process.start()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL, moment
    whole_run(config, tmp_path / "run")
    assert_same_run(once, tmp_path / "run")


@pytest.mark.slow
def test_killed_at_twenty_random_moments(tmp_path: Path) -> None:
    config = small(
        tmp_path, updates=800, validate_every=100, checkpoint_every=3, average=0.99, keep=1
    )
    arguments = (recipe(config, tmp_path / "r.yaml"), "--out")
    with start(*arguments, tmp_path / "once") as process:
        wait_for(process, "pairs to learn from")
        began = time.monotonic()
        process.communicate(timeout=300)
    share = (time.monotonic() - began) / 20
    rng = random.Random(7)
    reached: list[str] = []
    while len(reached) < 20 or len(set(reached)) <= 10:  # not all in one place
        assert len(reached) < 30
        with start(*arguments, tmp_path / "run") as process:
            wait_for(process, "pairs to learn from")
            time.sleep(rng.uniform(0, share))
            process.kill()
            process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        folder = tmp_path / "run" / "checkpoints"
        reached.append(last(tmp_path / "run").name if folder.exists() else "")
    with start(*arguments, tmp_path / "run") as process:
        process.communicate(timeout=300)
    assert process.returncode == 0
    assert_same_run(tmp_path / "once", tmp_path / "run")


def test_two_trainings_in_one_folder_are_refused(tmp_path: Path) -> None:
    config = small(tmp_path, updates=10**6, validate_every=10**6)
    with start(recipe(config, tmp_path / "r.yaml"), "--out", tmp_path / "run") as process:
        wait_for(process, "pairs to learn from")
        try:
            with pytest.raises(ToolkitError, match="another training is at work in this folder"):
                loop.train(config, tmp_path / "run", seconds=0)
        finally:
            process.kill()
        process.communicate(timeout=60)
    assert loop.train(config, tmp_path / "run", seconds=0) == 0  # no lock is left behind


def in_a_mount(folder: Path, options: str, *commands: str) -> subprocess.CompletedProcess[str]:
    """Commands that see a file system of their own at `folder`."""
    if sys.platform != "linux" or not shutil.which("unshare"):
        pytest.skip("needs Linux's unshare")
    folder.mkdir()
    script = " && ".join([f"mount -t tmpfs -o {options} none {folder}", *commands])
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    if re.search(r"^(unshare|mount): ", done.stderr, re.MULTILINE):
        pytest.skip(f"this system allows no mounts: {done.stderr.strip()}")
    return done


def train_command(*arguments: object) -> str:
    return shlex.join([*COMMAND, "train", *map(str, arguments)])


def test_a_full_disk(tmp_path: Path) -> None:
    config = small(tmp_path, model={"hidden_size": 64, "embedding_size": 64}, keep=1)
    once = whole_run(config, tmp_path / "once")
    size = last(once).stat().st_size * 3 // 2
    command = train_command(recipe(config, tmp_path / "r.yaml"), "--out", tmp_path / "tiny" / "run")
    copy = f"cp -a {tmp_path}/tiny/run {tmp_path}/run"
    done = in_a_mount(tmp_path / "tiny", f"size={size}", f"{command}; {copy}; exit 7")
    assert done.returncode == 7, done.stderr
    assert re.search(
        r"luong: [^\n]*update-0000000008.safetensors: not written: No space left on device; "
        r"update-0000000004.safetensors is whole, and the same command goes on from it\n$",
        done.stderr,
    )
    assert "Traceback" not in done.stderr
    assert last(tmp_path / "run").name == "update-0000000004.safetensors"
    whole_run(config, tmp_path / "run")  # the space has been made
    assert_same_run(once, tmp_path / "run")


def test_a_read_only_file_system(tmp_path: Path) -> None:
    command = train_command("g2p-en", "--out", tmp_path / "readonly" / "run")
    done = in_a_mount(tmp_path / "readonly", "ro", command)
    assert done.returncode == 1
    assert done.stderr == f"luong: {tmp_path}/readonly/run: Read-only file system\n"


def test_metrics_hold_no_times(tmp_path: Path) -> None:
    out = whole_run(small(tmp_path), tmp_path / "run")
    assert list(rows(out)[0]) == [
        "update",
        "epoch",
        "learning_rate",
        "train_loss",
        "dev_loss",
        "dev_per",
        "dev_wer",
    ]
