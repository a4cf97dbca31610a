"""Runs that go on with other settings than they began with."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from training_runs import assert_same_run, last, rows, small, whole_run

from luong.toolkit.config import Config
from luong.toolkit.errors import ToolkitError
from luong.toolkit.training import loop, run_folder

CONSTANT = {"schedule": "constant", "updates": 20}


def assert_same_training(one: Path, other: Path) -> None:
    """The same last weights, optimizer and average."""
    assert last(one).name == last(other).name
    tensors, others = load_file(last(one)), load_file(last(other))
    assert all(torch.equal(tensors[name], others[name]) for name in tensors)


def test_more_updates_as_if_from_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = small(tmp_path, **CONSTANT | {"updates": 40, "keep": 3})
    once = whole_run(long, tmp_path / "once")
    out = whole_run(small(tmp_path, **CONSTANT), tmp_path / "run")
    capsys.readouterr()
    assert loop.train(long, out) == 0
    said = capsys.readouterr().err
    changes = "training.updates: 40, not 20; training.keep: 3, not 2"
    assert f"going on with other settings than before ({changes})" in said
    assert "learning rate of the next" not in said
    assert_same_run(once, out)
    assert (out / "config.yaml").read_bytes() == (once / "config.yaml").read_bytes()
    assert len(list((out / "checkpoints").iterdir())) == 3
    assert loop.train(long, out) == 0
    assert "this run is finished" in capsys.readouterr().err


def test_a_schedule_that_differs_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = whole_run(small(tmp_path, updates=20), tmp_path / "run")
    capsys.readouterr()
    whole_run(small(tmp_path, updates=40), out)
    said = capsys.readouterr().err
    # after a warm-up of 3: half a cosine over 17 updates, at its 16th, and over 37, at 16 and 17
    assert (
        "the learning rate of the next update is 0.00169; that of the last was 2.55e-05, and would "
        "have been 0.00182 if training.updates had been 40 from the start"
    ) in said
    assert [row["update"] for row in rows(out)] == ["10", "20", "30", "40"]
    assert float(rows(out)[-1]["learning_rate"]) < 1e-5


def test_killed_between_the_old_settings_and_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = small(tmp_path, **CONSTANT | {"updates": 40})
    once = whole_run(long, tmp_path / "once")
    out = whole_run(small(tmp_path, **CONSTANT), tmp_path / "run")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "publish", killed)  # a checkpoint knows the new ones already
        with pytest.raises(KeyboardInterrupt):
            loop.train(long, out)
    assert "updates: 20" in (out / "config.yaml").read_text()
    whole_run(long, out)
    assert_same_run(once, out)
    assert (out / "config.yaml").read_bytes() == (once / "config.yaml").read_bytes()


def test_patience(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"validate_every": 2, "metric": "loss", "learning_rate": 0.3, "warmup": 0}
    short = small(tmp_path, **CONSTANT | settings | {"updates": 400, "patience": 2})
    out = whole_run(short, tmp_path / "run")
    count = len(rows(out))
    assert "2 validations without a better one (training.patience)" in capsys.readouterr().err
    patient = replace(short, training=replace(short.training, patience=3))
    whole_run(patient, out)
    assert len(rows(out)) > count
    assert_same_run(whole_run(patient, tmp_path / "once"), out)
    whole_run(short, out)  # less of it: done already
    assert "patience: 2" in (out / "config.yaml").read_text()


def test_corpora_may_move(tmp_path: Path) -> None:
    config = small(tmp_path, updates=3)
    out = tmp_path / "run"
    loop.train(config, out, seconds=0)
    (tmp_path / "moved").mkdir()
    names = {}
    for part in ("train", "dev"):
        path = tmp_path / "moved" / f"{part}.tsv"
        shutil.move(tmp_path / f"{part}.tsv", path)
        names[part] = str(path)
    whole_run(replace(config, data=replace(config.data, **names)), out)
    assert names["train"] in (out / "config.yaml").read_text()


def test_fewer_updates_than_are_done_are_refused(tmp_path: Path) -> None:
    out = whole_run(small(tmp_path, updates=20), tmp_path / "run")
    before = (out / "config.yaml").read_bytes()
    message = r"training\.updates: expected at least 20, which are done in .*/run, got 19$"
    with pytest.raises(ToolkitError, match=message):
        loop.train(small(tmp_path, updates=19), out)
    assert (out / "config.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("settings", "difference"),
    [
        ({"seed": 9}, "training.seed: 1, not 9"),
        ({"metric": "loss"}, "training.metric: per, not loss"),
        ({"batch_size": 8}, "training.batch_size: 7, not 8"),
        ({"model": {"dropout": 0.2}}, "model.dropout: 0.1, not 0.2"),
    ],
)
def test_other_settings_stay_refused(
    tmp_path: Path, settings: dict[str, Any], difference: str
) -> None:
    config: Config = small(tmp_path, updates=2)
    out = whole_run(config, tmp_path / "run")
    with pytest.raises(ToolkitError) as caught:
        loop.train(small(tmp_path, **{"updates": 9} | settings), out)
    assert f"holds a run with other settings ({difference}); choose another" in str(caught.value)
