from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from luong.toolkit import files, tensors
from luong.toolkit.errors import ToolkitError
from luong.toolkit.files import replacing
from luong.toolkit.text.batches import Place
from luong.toolkit.training.checkpoints import Checkpoints, TrainingState


def state(update: int) -> TrainingState:
    return TrainingState(
        data="ab12",
        update=update,
        place=Place(3, 17),
        loss=0.1 + 0.2,
        tokens=10**12,
        rows=[{"update": 1, "dev_loss": 1 / 3}],
        best=[-1e-300, 1 / 3],
        best_row=0,
        seconds=2 / 3,
    )


def test_a_checkpoint_comes_back_bit_by_bit(tmp_path: Path) -> None:
    tensors = {
        "a": torch.randn(3, 5).T,
        "b": torch.tensor(7.0),
        "c": torch.tensor([2**60, -1]),
        "empty": torch.zeros(0, 4),
    }
    tensors["tied"] = tensors["a"]
    found = Checkpoints(tmp_path / "checkpoints", keep=2)
    found.save(state(6), tensors)
    read, values = found.load()
    assert read == found.state() == state(6)
    assert values.keys() == tensors.keys()
    assert all(torch.equal(values[name], tensors[name]) for name in tensors)


def test_the_last_few_are_kept(tmp_path: Path) -> None:
    found = Checkpoints(tmp_path, keep=2)
    assert found.state() is None
    for update in (9, 10, 100, 100, 2000):
        found.save(state(update), {})
    assert [int(path.stem.removeprefix("update-")) for path in found.paths()] == [100, 2000]
    assert found.state() == state(2000)


def test_nothing_half_written_takes_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Checkpoints(tmp_path, keep=1)
    found.save(state(1), {"a": torch.ones(5)})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    message = (
        r"update-0000000002\.safetensors: not written: No space left on device; "
        r"update-0000000001\.safetensors is whole, and the same command goes on from it$"
    )
    with pytest.raises(ToolkitError, match=message):
        found.save(state(2), {"a": torch.zeros(5)})
    assert [path.name for path in tmp_path.iterdir()] == ["update-0000000001.safetensors"]
    assert torch.equal(found.load()[1]["a"], torch.ones(5))


def test_content_is_on_the_disk_before_it_has_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    monkeypatch.setattr(
        files, "_sync", lambda path: synced.append((path.name, (tmp_path / "a").exists()))
    )
    with replacing(tmp_path / "a") as partial:
        partial.write_text("x")
    assert synced == [("a.partial", False), (tmp_path.name, True)]


def test_an_error_of_the_writer_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("before")
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "a") as partial:
        partial.write_bytes(bytes(partial.write_text("half") // 0))
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "before")]


def test_no_code_runs_when_a_checkpoint_is_read(tmp_path: Path) -> None:
    torch.save({"a": print}, tmp_path / "update-0000000001.safetensors")
    with pytest.raises(ToolkitError, match="not a file of tensors, or damaged"):
        Checkpoints(tmp_path).load()


def test_weights_without_a_state_are_no_checkpoint(tmp_path: Path) -> None:
    tensors.save(tmp_path / "update-0000000001.safetensors", {"a": torch.zeros(1)}, {})
    with pytest.raises(ToolkitError, match="not a checkpoint"):
        Checkpoints(tmp_path).load()
