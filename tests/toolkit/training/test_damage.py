"""Runs whose files were lost or damaged: noticed by name, and made again from what is whole."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from training_runs import assert_same_run, last, small

from luong.toolkit import tensors
from luong.toolkit.config import Training
from luong.toolkit.errors import ToolkitError
from luong.toolkit.training import loop
from luong.toolkit.training.checkpoints import Checkpoints, TrainingState
from luong.toolkit.training.stopping import Stop


class Runs:
    """A corpus, a run that is finished, and one that was stopped after update 13 of 31."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.config = small(folder, **settings)
        self.finished, self.stopped = folder / "finished", folder / "stopped"
        loop.train(self.config, self.finished)
        votes = Stop.votes

        def after_thirteen(stop: Stop) -> list[float]:
            after_thirteen.count += 1  # type: ignore[attr-defined]
            over = after_thirteen.count == 13  # type: ignore[attr-defined]
            return [float(over), *votes(stop)[1:]]

        after_thirteen.count = 0  # type: ignore[attr-defined]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Stop, "votes", after_thirteen)
            loop.train(self.config, self.stopped)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("made"), keep=9)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "run"


def copied(run: Path, out: Path) -> Path:
    return Path(shutil.copytree(run, out))


def flip(path: Path, at: float = 0.7) -> None:
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(b"\xffgarbage\n" * 9),
    "bit": flip,
}
PUBLISHED = ("config.yaml", "source.json", "target.json", "model.safetensors", "metrics.csv")


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_published_is_made_again(
    made: Runs,
    out: Path,
    name: str,
    damage: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for run in (made.finished, made.stopped) if damage == "bit" else (made.finished,):
        copied(run, out)
        DAMAGE[damage](out / name)
        loop.train(made.config, out)
        said = capsys.readouterr().err
        assert re.search(rf"^{out / name}: .*written again", said, re.MULTILINE), said
        assert_same_run(made.finished, out)
        assert (out / "config.yaml").read_bytes() == (made.finished / "config.yaml").read_bytes()
        assert loop.train(made.config, out) == 0
        assert "this run is finished" in capsys.readouterr().err
        shutil.rmtree(out)


@pytest.mark.parametrize("damage", [name for name in DAMAGE if name != "gone"])
@pytest.mark.parametrize("run", ["finished", "stopped"])
def test_a_damaged_checkpoint_is_set_aside(
    made: Runs, out: Path, run: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    copied(getattr(made, run), out)
    newest = last(out)
    DAMAGE[damage](newest)
    content = newest.read_bytes()
    loop.train(made.config, out)
    said = capsys.readouterr().err
    aside = f"set aside as {newest.name}.damaged; going on from the one before"
    assert re.search(rf"^{newest}: .*damaged.*; {re.escape(aside)}$", said, re.MULTILINE), said
    assert newest.with_name(f"{newest.name}.damaged").read_bytes() == content
    newest.with_name(f"{newest.name}.damaged").unlink()
    assert_same_run(made.finished, out)


def test_no_whole_checkpoint(made: Runs, out: Path) -> None:
    copied(made.stopped, out)
    for path in (out / "checkpoints").iterdir():
        flip(path)
    before = sorted(path.name for path in out.rglob("*"))
    with pytest.raises(ToolkitError, match=r"update-0000000013.*; no checkpoint is whole, so that"):
        loop.train(made.config, out)
    assert sorted(path.name for path in out.rglob("*")) == before


@pytest.mark.parametrize("name", ["train.arrow", "source.json", "target.json", "prepared.json"])
def test_damaged_symbols_change_no_result(
    made: Runs, out: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    copied(made.stopped, out)
    flip(out / "data" / name)
    loop.train(made.config, out)
    assert "preparing it again" in capsys.readouterr().err
    assert_same_run(made.finished, out)
    assert contents(out / "data") == contents(made.finished / "data")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def worse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first validation of a run be its best."""
    record = loop.record

    def by_update(state: TrainingState, settings: Training, dev: dict[str, float]) -> bool:
        return record(state, settings, dev | {"loss": float(state.update), "per": 1.0})

    monkeypatch.setattr(loop, "record", by_update)


def test_best_weights_that_are_lost_are_an_error(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worse(monkeypatch)
    made = Runs(tmp_path)
    for run in (made.finished, made.stopped):
        copied(run, out)
        for path in sorted((out / "checkpoints").iterdir())[:-1]:
            path.unlink()
        flip(out / "model.safetensors")
        before = contents_of_all(out)
        message = (
            rf"{out}/model\.safetensors: damaged: its content has changed since it was saved; no "
            r"whole checkpoint holds the best weights, those of update 10: put a copy of it back"
        )
        with pytest.raises(ToolkitError, match=message):
            loop.train(made.config, out)
        assert contents_of_all(out) == before
        shutil.copyfile(run / "model.safetensors", out / "model.safetensors")
        loop.train(made.config, out)
        assert_same_run(made.finished, out)
        shutil.rmtree(out)


def contents_of_all(out: Path) -> dict[str, bytes]:
    paths = (path for path in out.rglob("*") if path.is_file() and path.name != "log.txt")
    return {str(path): path.read_bytes() for path in paths}


def test_best_weights_that_a_checkpoint_has_are_made_again(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worse(monkeypatch)
    made = Runs(tmp_path, keep=9, average=0.9)
    copied(made.stopped, out)
    expected = (out / "model.safetensors").read_bytes()
    (out / "model.safetensors").unlink()
    loop.train(made.config, out, seconds=0)
    said = capsys.readouterr().err
    assert "model.safetensors: lost; written again from update-0000000010.safetensors" in said
    assert (out / "model.safetensors").read_bytes() == expected


def test_weights_of_another_run_are_noticed(
    made: Runs, tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the same settings, but for the seed."""
    other = small(made.finished.parent, updates=2, seed=9, keep=9)
    loop.train(other, tmp_path / "other")
    copied(made.finished, out)
    shutil.copyfile(tmp_path / "other" / "model.safetensors", out / "model.safetensors")
    loop.train(made.config, out)
    said = capsys.readouterr().err
    assert "model.safetensors: not the weights that the last checkpoint tells of; written" in said
    assert_same_run(made.finished, out)


def older(out: Path) -> None:
    """Make a folder what versions without hashes left."""
    for path in (out / "checkpoints").iterdir():
        with tensors.opened(path) as stored:
            state = dict(stored.about["state"])
        for name in ("dev", "settings", "weights"):
            del state[name]
        text = json.dumps(state | {"finished": state["update"] == 31})
        save_file(load_file(path), path, {"state": text})
    save_file(load_file(out / "model.safetensors"), out / "model.safetensors")
    path = out / "data" / "prepared.json"
    content = json.loads(path.read_text())
    del content["hashes"]
    path.write_text(json.dumps(content))
    path = out / "config.yaml"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:-1]))


def test_a_run_of_an_older_version_goes_on(
    made: Runs, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older(copied(made.finished, out))
    before = contents_of_all(out)
    loop.train(made.config, out)
    assert "this run is finished" in capsys.readouterr().err
    assert contents_of_all(out) == before
    (out / "model.safetensors").write_bytes(b"")
    loop.train(made.config, out)
    assert "written again from update-0000000031.safetensors" in capsys.readouterr().err
    assert_same_run(made.finished, out)
    shutil.rmtree(out)
    older(copied(made.stopped, out))
    loop.train(made.config, out)
    assert "again" not in capsys.readouterr().err
    assert_same_run(made.finished, out)
    shutil.rmtree(out)
    older(copied(made.stopped, out))
    other = small(made.finished.parent, seed=9, keep=9)
    with pytest.raises(ToolkitError, match=r"other settings \(training.seed: 1, not 9\)"):
        loop.train(other, out)


def change(out: Path, **changes: Any) -> Path:
    """Give the last checkpoint another state, with a hash that is right."""
    path = last(out)
    with tensors.opened(path) as stored:
        state = stored.about["state"]
        found = stored.read()
    tensors.save(path, found, {"state": state | changes})
    return path


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("data", 3),
        ("dev", None),
        ("settings", ["a"]),
        ("weights", 1.5),
        ("update", -1),
        ("update", True),
        ("update", 14),
        ("update", 10**30),
        ("place", [1]),
        ("place", [0, -1]),
        ("place", {"epoch": 0}),
        ("loss", "1"),
        ("tokens", 0.5),
        ("rows", {}),
        ("rows", [3]),
        ("rows", [{"update": 10}]),
        ("rows", [{"update": 10, "dev_loss": "1"}]),
        ("rows", [{"update": 10, "dev_loss": 1}, {"update": 12, "dev_loss": 1, "more": 2}]),
        ("rows", [{"update": 99, "dev_loss": 1}]),
        ("best", [1]),
        ("best_row", 7),
        ("best_row", -2),
        ("seconds", None),
        ("more", 1),
    ],
)
def test_a_state_that_cannot_be_is_no_checkpoint(
    made: Runs, out: Path, field: str, value: object
) -> None:
    path = change(copied(made.stopped, out), **{field: value})
    found = Checkpoints(out / "checkpoints")
    with pytest.raises(ToolkitError, match=rf"{path}: not a checkpoint, or damaged \(.+\)$"):
        found.load()
    (message,) = found.set_damaged_aside()
    assert message.endswith("; set aside as update-0000000013.safetensors.damaged")


def test_a_place_that_is_not_in_the_data(made: Runs, out: Path) -> None:
    path = change(copied(made.stopped, out), place=[1, 500])
    message = rf"{path}: not a checkpoint of these data \(batch 500 of an epoch of 9\)"
    with pytest.raises(ToolkitError, match=message):
        loop.train(made.config, out)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("model.decoder.output.weight", None, "model.decoder.output.weight is missing"),
        ("optimizer.0.exp_avg", None, "optimizer.0.exp_avg is missing"),
        ("optimizer.0.more", torch.zeros(1), "'optimizer.0.more' is unknown"),
        ("optimizer.x", torch.zeros(1), "'optimizer.x' is unknown"),
        ("optimizer.0.step", torch.zeros(1), r"expected float32 of shape \[\], got float32 of"),
        ("optimizer.0.step", torch.tensor(3), r"expected float32 of shape \[\], got int64 of"),
        ("optimizer.0.exp_avg_sq", torch.zeros(2, 2), r"got float32 of shape \[2, 2\]"),
        ("optimizer.0.step", torch.tensor(float("nan")), "expected finite numbers, got NaN or"),
        ("model.decoder.output.bias", torch.zeros(3), "'model.decoder.output.bias' is unknown"),
    ],
)
def test_tensors_that_are_none_of_this_training(
    made: Runs, out: Path, name: str, value: torch.Tensor | None, message: str
) -> None:
    path = last(copied(made.stopped, out))
    with tensors.opened(path) as stored:
        about, found = {"state": stored.about["state"]}, stored.read()
    found.pop(name, None)
    tensors.save(path, found if value is None else found | {name: value}, about)
    before = contents_of_all(out)
    with pytest.raises(ToolkitError, match=rf"{path}: .*{message}"):
        loop.train(made.config, out)
    assert contents_of_all(out) == before


def test_a_huge_header_is_refused(made: Runs, out: Path) -> None:
    path = last(copied(made.stopped, out))
    path.write_bytes((1 << 40).to_bytes(8, "little") + b"{")
    os.truncate(path, 1 << 41)  # a sparse file
    with pytest.raises(ToolkitError, match="its header has no sensible length"):
        Checkpoints(out / "checkpoints").load()
