"""Small trainings for the tests of training, in this process and in others."""

from __future__ import annotations

import csv
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from luong.toolkit.config import Config, Data, Model, Side, Training
from luong.toolkit.training import loop

SIZES = {"embedding_size": 5, "hidden_size": 6, "dropout": 0.1}
# every weight and row depends on the last, and nothing falls on the same update
STEPS = {"updates": 31, "batch_size": 7, "warmup": 3, "validate_every": 10, "checkpoint_every": 4}
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
Run = Callable[..., "subprocess.CompletedProcess[str]"]  # the command, in a process of its own
COMMAND = [sys.executable, "-m", "luong.toolkit"]


def spell(word: str) -> str:
    """A language that is learnt in seconds: letters doubled are long, all else is itself."""
    sounds: list[str] = []
    for letter in word:
        if sounds and sounds[-1] == letter:
            sounds[-1] = f"{letter}:"
        else:
            sounds.append(letter)
    return " ".join(sounds)


def write_corpus(folder: Path, pairs: int = 60) -> None:
    rng = random.Random(5)
    words = ["".join(rng.choices("abcde", k=rng.randint(1, 7))) for _ in range(pairs + 12)]
    for name, part in (("dev", words[:12]), ("train", words[12:])):
        text = "".join(f"{word}\t{spell(word)}\n" for word in part)
        (folder / f"{name}.tsv").write_text(text, encoding="utf-8")


def small(folder: Path, *, model: dict[str, Any] | None = None, **settings: Any) -> Config:
    """The config of a training of a second or less, on the corpus in `folder`."""
    if not (folder / "train.tsv").exists():
        write_corpus(folder)
    return Config(
        Data(
            train=str(folder / "train.tsv"),
            dev=str(folder / "dev.tsv"),
            source=Side(level="characters"),
        ),
        Model(**SIZES | (model or {})),
        Training(**STEPS | settings),
    )


def recipe(config: Config, path: Path) -> Path:
    """The config as a file, for the command."""
    config.save(path)
    return path


def rows(out: Path) -> list[dict[str, str]]:
    with (out / "metrics.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def last(out: Path) -> Path:
    return sorted((out / "checkpoints").iterdir())[-1]


def assert_same_run(one: Path, other: Path) -> None:
    """Bit by bit: the best weights, the metrics, the last weights, the optimizer."""
    for name in ("model.safetensors", "metrics.csv", "source.json", "target.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert last(one).name == last(other).name
    tensors, others = load_file(last(one)), load_file(last(other))
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensors[name], others[name]) for name in tensors)
    assert not list(other.glob("**/*.partial"))


def whole_run(config: Config, out: Path) -> Path:
    """The folder of a training that nothing interrupts."""
    assert loop.train(config, out) == 0
    return out


def start(*arguments: object, code: str = "", **options: Any) -> subprocess.Popen[str]:
    """`luong train` in a process of its own, after `code` has run in it."""
    command = [sys.executable, "-c", MAIN.format(code=code), "train", *map(str, arguments)]
    return subprocess.Popen(command, env=ENVIRONMENT, text=True, stderr=subprocess.PIPE, **options)


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    """Read what a process says, up to a line with `text`."""
    assert process.stderr
    said = []
    for line in process.stderr:
        said.append(line)
        if text in line:
            return
    raise AssertionError("".join(said))


MAIN = """\
import os, signal, sys, time
from luong.toolkit.command import cli
from luong.toolkit.training import loop
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored
{code}
sys.exit(cli.main())
"""
