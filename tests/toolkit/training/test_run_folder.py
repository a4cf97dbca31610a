"""The folder of a run: what training may touch in it, and what it leaves when it fails."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from training_runs import assert_same_run, small, whole_run

from luong.toolkit.config import Config
from luong.toolkit.errors import ToolkitError
from luong.toolkit.training import loop


def failing(folder: Path) -> Config:
    """A training that ends before it begins."""
    config = small(folder)
    return replace(config, data=replace(config.data, train=str(folder / "nowhere.tsv")))


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize(
    "name", ["work.partial/thesis.tex", "download.partial", "model.safetensors", "data/mine"]
)
@pytest.mark.parametrize("fails", [True, False])
def test_a_folder_of_something_else_is_left_as_it_is(
    tmp_path: Path, name: str, fails: bool
) -> None:
    out = tmp_path / "run"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text("mine")
    before = contents(out)
    with pytest.raises(ToolkitError, match="run: holds something that is not a run; choose anoth"):
        loop.train(failing(tmp_path) if fails else small(tmp_path), out)
    assert contents(out) == before


def test_an_empty_folder_outlives_a_failing_start(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    with pytest.raises(ToolkitError, match=r"nowhere\.tsv"):
        loop.train(failing(tmp_path), out)
    assert contents(out) == {}
    out.rmdir()
    with pytest.raises(ToolkitError, match=r"nowhere\.tsv"):
        loop.train(failing(tmp_path), out)
    assert not out.exists()


def test_what_somebody_adds_meanwhile_outlives_a_failing_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = {
        "notes.txt": b"mine",
        "data": None,
        "data/notes.txt": b"mine",
        "data/x.partial": b"mine",
    }

    def failing_loop(*_: object) -> None:
        assert (out / "data" / "train.arrow").exists()
        for name, content in added.items():
            if content is not None:
                (out / name).write_bytes(content)
        raise ToolkitError("failed")

    monkeypatch.setattr(loop, "loop", failing_loop)
    out = tmp_path / "run"
    with pytest.raises(ToolkitError, match="failed"):
        loop.train(small(tmp_path, tensorboard=True), out)
    assert contents(out) == added


def test_an_earlier_start_outlives_a_failing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both before the first checkpoint: what was prepared stays."""

    def raising(error: BaseException) -> None:
        def failing_loop(*_: object) -> None:
            raise error

        monkeypatch.setattr(loop, "loop", failing_loop)
        with pytest.raises(type(error)):
            loop.train(small(tmp_path), tmp_path / "run")

    raising(KeyboardInterrupt())
    before = contents(tmp_path / "run")
    assert "data/train.arrow" in before
    raising(ToolkitError("failed"))
    after = contents(tmp_path / "run")
    assert after.pop("log.txt") != before.pop("log.txt")
    assert after == before


def test_only_what_a_run_had_begun_to_write_is_removed(tmp_path: Path) -> None:
    config, out = small(tmp_path, updates=3), tmp_path / "run"
    loop.train(config, out, seconds=0)
    mine = ("a.partial", "data/a.partial", "checkpoints/a.partial", "checkpoints/update-3.partial")
    ours = ("config.yaml", "data/train.arrow", "checkpoints/update-0000000002.safetensors")
    for name in mine:
        (out / name).write_text("mine")
    for name in ours:
        (out / f"{name}.partial").write_text("half")
    loop.train(config, out)
    assert all((out / name).read_text() == "mine" for name in mine)
    assert not any((out / f"{name}.partial").exists() for name in ours)


def test_an_attempt_that_was_killed_is_a_new_folder(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / ".lock").touch()
    (out / "config.yaml.partial").write_text("half")
    whole_run(small(tmp_path, updates=1), out)


@pytest.mark.parametrize("name", ["checkpoints", "data", "tensorboard"])
@pytest.mark.parametrize("begun", [True, False])
def test_a_linked_folder_in_a_run_is_refused(tmp_path: Path, name: str, begun: bool) -> None:
    config, out = small(tmp_path, updates=3, tensorboard=True), tmp_path / "run"
    out.mkdir()
    target = tmp_path / "target"
    if begun:
        loop.train(config, out, seconds=0)
        (out / name).rename(target)
    else:
        target.mkdir()
        (target / "train.arrow.partial").write_text("mine")
    (out / name).symlink_to(target)
    before = contents(tmp_path)
    with pytest.raises(ToolkitError, match=f"run/{name}: expected a folder, got a link$"):
        loop.train(config, out)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "name",
    [
        ".lock",
        "config.yaml",
        "model.safetensors",
        "metrics.csv",
        "log.txt",
        "data/train.arrow",
        "checkpoints/update-0000000001.safetensors",
        "data/prepared.json.partial",
    ],
)
@pytest.mark.parametrize("kind", ["a link", "a pipe", "a folder"])
def test_what_is_no_file_in_the_place_of_one_is_refused(
    tmp_path: Path, name: str, kind: str
) -> None:
    config, out = small(tmp_path, updates=3), tmp_path / "run"
    for folder in ("checkpoints", "data"):
        (out / folder).mkdir(parents=True)
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("mine")
    if kind == "a link":
        (out / name).symlink_to(thesis)
    elif kind == "a pipe":
        os.mkfifo(out / name)
    else:
        (out / name).mkdir()
    message = re.escape(f"{out / name}: expected a file, got {kind}")
    with pytest.raises(ToolkitError, match=f"^{message}$"):
        loop.train(config, out)
    assert thesis.read_text() == "mine"
    assert os.path.lexists(out / name)


def test_a_folder_may_itself_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    config = small(tmp_path, updates=3)
    whole_run(config, tmp_path / "run")
    assert_same_run(whole_run(config, tmp_path / "once"), tmp_path / "elsewhere")


def test_a_file_for_a_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(ToolkitError, match="run: expected a folder, got a file"):
        loop.train(small(tmp_path), tmp_path / "run")
    assert (tmp_path / "run").read_text() == "mine"
