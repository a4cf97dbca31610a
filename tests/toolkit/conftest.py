"""A small trained model, made by the real command, for all tests of the toolkit."""

from __future__ import annotations

import io
import random
import subprocess
import sys
import warnings
from itertools import product
from pathlib import Path

import pytest
import torch
from training_runs import Run, spell

import luong
from luong.toolkit.command.cli import main
from luong.toolkit.inference.translator import Translator

RECIPE = """\
data:
  train: {folder}/train.tsv
  dev: {folder}/dev.tsv
  test: {folder}/test.tsv
  source: {{level: characters, lowercase: true}}
  target: {{level: words}}
model: {{embedding_size: 24, hidden_size: 48, dropout: 0.0}}
training: {{updates: 400, batch_size: 32, learning_rate: 0.01, warmup: 20, validate_every: 200}}
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command `luong` in this process, which need not load torch again."""

    def run(*arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
        argv = [str(argument) for argument in arguments]
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        status = main(argv)
        return subprocess.CompletedProcess(argv, status, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe and its corpora."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = random.Random(5)
    words = {"".join(rng.choices("abcde", k=rng.randint(1, 7))) for _ in range(3000)}
    ranked = sorted(words)  # a set has another order in every process
    rng.shuffle(ranked)
    # what tests ask for word by word is learnt by heart, whatever the processor's rounding
    short = ["".join(word) for k in range(1, 5) for word in product("abcde", repeat=k)]
    train = ranked[150:] + 2 * short
    for name, part in (("dev", ranked[:50]), ("test", ranked[50:150]), ("train", train)):
        text = "".join(f"{word}\t{spell(word)}\n" for word in part)
        (folder / f"{name}.tsv").write_text(text, encoding="utf-8")
    path = folder / "recipe.yaml"
    path.write_text(RECIPE.format(folder=folder), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def model(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a trained model."""
    out = tmp_path_factory.mktemp("runs") / "model"
    command = [sys.executable, "-m", "luong.toolkit", "train", str(recipe), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="session")
def translator(model: Path) -> Translator:
    return luong.load(model)


@pytest.fixture(scope="session")
def exact(model: Path) -> Translator:
    """The same in float64."""
    return Translator.load(model, dtype=torch.float64)
