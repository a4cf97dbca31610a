"""Files of tensors, and the weights of a model: what is refused, and before memory is taken."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as parsed
from torch import Tensor

from luong.toolkit import files, tensors
from luong.toolkit.config import Config, Data, Model, Side
from luong.toolkit.errors import ToolkitError
from luong.toolkit.inference import weights
from luong.toolkit.inference.translator import Translator, build_model
from luong.toolkit.text.vocabulary import Vocabulary

CONFIG = Config(Data("train.tsv", "dev.tsv", source=Side("characters")), Model(5, 6))
SOURCE = Vocabulary.build(CONFIG.data.source, ["abc"])
TARGET = Vocabulary.build(CONFIG.data.target, ["x y z"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of an untrained model."""
    torch.manual_seed(3)
    CONFIG.save(tmp_path / "config.yaml")
    SOURCE.save(tmp_path / "source.json")
    TARGET.save(tmp_path / "target.json")
    model = build_model(CONFIG, SOURCE, TARGET)
    weights.save(tmp_path / "model.safetensors", model, weights.meaning(CONFIG, SOURCE, TARGET))
    return tmp_path


def refused(folder: Path, message: str, file: str = "model.safetensors") -> None:
    with pytest.raises(ToolkitError) as caught:
        Translator.load(folder)
    assert str(caught.value) == f"{folder / file}: {message}"


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None], content: bytes = b"") -> None:
    """Change the header of the weights."""
    path = folder / "model.safetensors"
    header, rest = split(path)
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + (content or rest))


def split(path: Path) -> tuple[dict[str, Any], bytes]:
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def old(folder: Path) -> None:
    """Make the weights what they were before a hash and a meaning were kept."""
    rewrite(folder, lambda header: header.pop("__metadata__"))


def test_what_was_saved_is_loaded(folder: Path) -> None:
    expected = parsed((folder / "model.safetensors").read_bytes())
    for _ in range(2):
        found = Translator.load(folder).model
        assert all(p.device.type == "cpu" and p.requires_grad for p in found.parameters())
        assert found.state_dict().keys() == expected.keys()
        assert all(torch.equal(x, expected[name]) for name, x in found.state_dict().items())
        old(folder) if "__metadata__" in split(folder / "model.safetensors")[0] else None


def test_any_changed_bit_is_noticed(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    for at in range(start, len(whole), 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        refused(folder, "damaged: its content has changed since it was saved")


@pytest.mark.parametrize("side", ["source", "target"])
def test_another_vocabulary_of_the_same_size_is_noticed(folder: Path, side: str) -> None:
    path = folder / f"{side}.json"
    first, second = ("a", "b") if side == "source" else ("x", "y")
    text = path.read_text()
    swapped = text.replace(f'"{first}"', '"_"').replace(f'"{second}"', f'"{first}"')
    path.write_text(swapped.replace('"_"', f'"{second}"'))
    refused(folder, f"saved with another vocabulary than that of {path}")


def test_other_settings_are_noticed(folder: Path) -> None:
    """Of the same shapes: only the meaning of the weights differs."""
    path = folder / "config.yaml"
    replace(CONFIG, model=replace(CONFIG.model, attend_end=True)).save(path)
    refused(folder, f"saved with model.attend_end false, and {path} has true")
    old(folder)
    Translator.load(folder)  # nothing tells


def test_the_vocabulary_counts_and_not_how_its_file_is_laid_out(folder: Path) -> None:
    for name in ("source.json", "target.json"):
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text())))
    Translator.load(folder)


@pytest.mark.parametrize("size", [20000, 2])
def test_other_sizes_are_refused_before_memory_is_taken(
    folder: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    old(folder)
    monkeypatch.setattr(tensors.Stored, "read", None)
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("hidden_size: 6", f"hidden_size: {size}"))
    refused(
        folder,
        f"bridge.layers.0.0.bias: expected float32 of shape [{size}], got float32 of shape [6]",
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda found: found | {"decoder.output.weight": torch.zeros(7, 6, dtype=torch.int64)},
            "decoder.output.weight: expected float32 of shape [7, 6], got int64 of shape [7, 6]",
        ),
        (
            lambda found: found | {"decoder.output.weight": torch.zeros(7, 6, dtype=torch.bool)},
            "decoder.output.weight: expected float32 of shape [7, 6], got bool of shape [7, 6]",
        ),
        (
            lambda found: found | {"decoder.output.weight": torch.zeros(6, 7)},
            "decoder.output.weight: expected float32 of shape [7, 6], got float32 of shape [6, 7]",
        ),
        (lambda found: found | {"more": torch.zeros(1)}, "'more' is unknown"),
        (lambda found: dict(list(found.items())[1:]), "{first} is missing"),
        (
            lambda found: found | {"decoder.output.weight": torch.full((7, 6), float("nan"))},
            "decoder.output.weight: expected finite numbers, got NaN or infinity",
        ),
        (
            lambda found: found | {"decoder.output.weight": torch.full((7, 6), float("-inf"))},
            "decoder.output.weight: expected finite numbers, got NaN or infinity",
        ),
    ],
)
def test_weights_that_are_none_of_this_model(
    folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]], message: str
) -> None:
    path = folder / "model.safetensors"
    found = parsed(path.read_bytes())
    tensors.save(path, change(found), {})
    refused(folder, message.format(first=next(iter(found))))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda h: h.update(a=3), "the entry of 'a' is none of a tensor"),
        (lambda h: h.update(a={"dtype": "F32"}), "the entry of 'a' is none of a tensor"),
        (lambda h: place(h, shape=[-1, 6]), "the entry of 'decoder.output.weight' is none of a"),
        (lambda h: place(h, shape=[True]), "the entry of 'decoder.output.weight' is none of a"),
        (
            lambda h: place(h, dtype="F4"),
            "the entry of 'decoder.output.weight' is none of a tensor",
        ),
        (lambda h: place(h, shape=[10**18, 6]), "the place of 'decoder.output.weight' is wrong"),
        (lambda h: place(h, data_offsets=[0, 168]), " is wrong"),
        (lambda h: place(h, data_offsets=[10**20, 10**20]), "the entry of 'decoder.output.weight'"),
        (lambda h: h.update(__metadata__=[]), "its metadata are no JSON object"),
        (lambda h: h.update(__metadata__={"luong": "3"}), "its metadata 'luong' are no JSON obj"),
        (lambda h: h.update(__metadata__={"luong": "{"}), "Expecting property name"),
        (lambda h: h.pop("encoder.embedding.weight"), "the place of "),
    ],
)
def test_a_header_that_cannot_be(
    folder: Path, change: Callable[[dict[str, Any]], None], reason: str
) -> None:
    rewrite(folder, change)
    with pytest.raises(ToolkitError, match=re.escape(reason)) as caught:
        Translator.load(folder)
    assert "model.safetensors: not a file of tensors, or damaged (" in str(caught.value)


def place(header: dict[str, Any], **changes: object) -> None:
    header["decoder.output.weight"] |= changes


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        (10).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (9).to_bytes(8, "little") + b'{"a":NaN}',
        (13).to_bytes(8, "little") + b'{"a":1,"a":1}',
        (100_000).to_bytes(8, "little") + b"[" * 100_000,
        (5000).to_bytes(8, "little") + b"1" * 5000,
    ],
    ids=["empty", "endless", "cut", "list", "NaN", "repeated", "deep", "long"],
)
def test_a_file_that_is_none(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ToolkitError, match=r"model\.safetensors: not a file of tensors, or damag"):
        Translator.load(folder)


def test_a_meaning_that_cannot_be_read(folder: Path) -> None:
    rewrite(folder, lambda header: header["__metadata__"].update(luong='{"meaning": 3}'))
    refused(folder, "damaged: its meaning cannot be read")


@pytest.mark.parametrize("name", ["model.safetensors", "source.json", "config.yaml"])
def test_what_is_no_file_is_refused_and_never_waited_for(folder: Path, name: str) -> None:
    path = folder / name
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ToolkitError, match=re.escape(name)):
        Translator.load(folder)
    for each in (files.digest, lambda path: files.read(path, 9)):
        with pytest.raises(ToolkitError, match=re.escape(f"{path}: expected a file, got a pipe")):
            each(path)


def test_reading_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"123")
    assert files.read(path, 3) == b"123"
    with pytest.raises(
        ToolkitError, match=re.escape(f"{path}: expected at most 2 bytes, got more")
    ):
        files.read(path, 2)
    with pytest.raises(ToolkitError, match=re.escape(f"{tmp_path}: Is a directory")):
        files.read(tmp_path, 9)
    with pytest.raises(ToolkitError, match=re.escape("/dev/zero: expected a file, got a device")):
        files.read(Path("/dev/zero"), 9)


def test_the_hash_of_a_file_is_the_usual_one(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-4
    assert files.digest(path) == expected


def test_tensors_of_all_kinds_come_back(tmp_path: Path) -> None:
    base = torch.randn(4, 3)
    saved = {
        "scalar": torch.tensor(3),
        "empty": torch.zeros(0, 5),
        "half": base.bfloat16(),
        "bytes": torch.tensor([1, 2], dtype=torch.uint8),
        "flags": torch.tensor([True, False]),
        "double": base.double(),
        "whole": base,
        "turned": base.T,
        "again": base,
    }
    tensors.save(tmp_path / "a", saved, {"told": "é"})
    with tensors.opened(tmp_path / "a") as stored:
        stored.expect(saved)
        assert stored.about["told"] == "é"
        found = stored.read()
    assert found.keys() == saved.keys()
    for name, tensor in saved.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_changed_metadata_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors.save(path, {"a": torch.zeros(3)}, {"told": "yes"})
    rewrite(tmp_path, lambda header: header["__metadata__"].update(luong=changed(header)))
    with tensors.opened(path) as stored, pytest.raises(ToolkitError, match="damaged: its content"):
        stored.read()


def changed(header: dict[str, Any]) -> str:
    text: str = header["__metadata__"]["luong"]
    return text.replace("yes", "no")


def test_the_same_weights_are_the_same_file(tmp_path: Path) -> None:
    for name in "abcdefgh":
        tensors.save(tmp_path / name, {"x": torch.ones(3)}, {"told": 1, "more": 2})
    assert len({(tmp_path / name).read_bytes() for name in "abcdefgh"}) == 1
