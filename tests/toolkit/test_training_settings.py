"""Settings of training that make no sense: named, with what is allowed, before data are read."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from luong.toolkit.config import Config, Data, Side, Training
from luong.toolkit.errors import ToolkitError, UsageError

HALVING = {"schedule": "halving", "decay_start": 5, "decay_every": 1}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"updates": 0}, "training.updates: expected at least 1, got 0"),
        ({"batch_size": -1}, "training.batch_size: expected at least 1, got -1"),
        ({"accumulate": 0}, "training.accumulate: expected at least 1, got 0"),
        ({"validate_every": 0}, "training.validate_every: expected at least 1, got 0"),
        ({"checkpoint_every": 0}, "training.checkpoint_every: expected at least 1, got 0"),
        ({"keep": 0}, "training.keep: expected at least 1, got 0"),
        ({"learning_rate": -1.0}, "training.learning_rate: expected above 0 and finite, got -1.0"),
        ({"clip_norm": float("inf")}, "training.clip_norm: expected above 0 and finite, got inf"),
        ({"warmup": -1}, "training.warmup: expected 0 or more, finite, got -1"),
        ({"weight_decay": float("nan")}, "training.weight_decay: expected 0 or more, finite, got"),
        ({"label_smoothing": 1.0}, "training.label_smoothing: expected from 0 to below 1, got 1.0"),
        ({"average": 1.0}, "training.average: expected from 0 to below 1, got 1.0"),
        ({"seed": -1}, "training.seed: expected from 0 to below 2^32, got -1"),
        ({"patience": 0}, "training.patience: expected null, or at least 1, got 0"),
        (
            {"schedule": "halving"},
            "training.decay_start: expected at least 1, with training.schedule halving, got null",
        ),
        (
            HALVING | {"decay_every": 0},
            "training.decay_every: expected at least 1, with training.schedule halving, got 0",
        ),
        (
            HALVING | {"schedule": "cosine"},
            "training.decay_start: expected null, with training.schedule cosine, got 5",
        ),
    ],
)
def test_a_setting_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        Training(**settings)


def test_the_limits_are_allowed() -> None:
    Training(**HALVING, average=0.0, patience=1, warmup=0, weight_decay=0.0, keep=1, seed=0)


def test_a_metric_that_does_not_fit_the_task_is_refused() -> None:
    config = Config(Data("train.tsv", "dev.tsv", target=Side(level="characters")))
    message = "training.metric: expected per, wer, exact or loss where data.target.level is chara"
    with pytest.raises(UsageError, match=message):
        replace(config, training=Training(metric="bleu"))
    for metric in ("per", "wer", "exact", "loss"):
        replace(config, training=Training(metric=metric))


def test_settings_that_lost_their_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    config = Config(Data("train.tsv", "dev.tsv"))
    config.save(path)
    assert Config.of_run(tmp_path) == config
    lines = path.read_text().splitlines(keepends=True)
    for count in range(len(lines)):
        path.write_text("".join(lines[:count]))
        with pytest.raises(ToolkitError, match=re.escape(f"{path}: not the settings of a run")):
            Config.of_run(tmp_path)
