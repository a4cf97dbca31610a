"""The weights of a trained model, stored with the settings and vocabularies they belong to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from luong.toolkit import tensors
from luong.toolkit.config import Config
from luong.toolkit.errors import ToolkitError
from luong.toolkit.text.vocabulary import Vocabulary

Meaning = Mapping[str, object]  # by its name in an error: a setting, or the hash of a vocabulary
_KEY = "meaning"  # in what is saved with the weights


def meaning(config: Config, source: Vocabulary, target: Vocabulary) -> Meaning:
    """Return the settings, and the hashes of the vocabularies, that weights belong to."""
    return config.shape() | {"source.json": source.digest, "target.json": target.digest}


def save(path: Path, model: nn.Module, meaning: Meaning) -> None:
    """Write the weights of `model`, with a hash of them and their meaning."""
    tensors.save(path, model.state_dict(), {_KEY: meaning})


def digest(model: nn.Module, meaning: Meaning) -> str:
    """Return the hash that `save` writes."""
    return tensors.digest(model.state_dict(), {_KEY: meaning})


def load(path: Path, model: nn.Module, meaning: Meaning) -> None:
    """Give `model`, which may be on the meta device, the weights of a file.

    Weights of other names, dtypes or shapes, or of other settings or vocabularies (if the file has
    these), are refused before memory is taken for them; then weights that do not match the hash in
    the file, or are not finite.
    """
    with tensors.opened(path) as stored:
        _compare(path, stored.about.get(_KEY), meaning)
        stored.expect(model.state_dict())
        weights = stored.read()
    for name, tensor in weights.items():
        if not torch.isfinite(tensor).all():
            raise ToolkitError(f"{path}: {name}: expected finite numbers, got NaN or infinity")
    model.load_state_dict(weights, assign=True)


def _compare(path: Path, told: object, meaning: Meaning) -> None:
    if told is None:  # of an older version
        return
    if not isinstance(told, dict):
        raise ToolkitError(f"{path}: damaged: its {_KEY} cannot be read")
    for name, found in meaning.items():
        if name in told and told[name] != found:
            raise ToolkitError(f"{path}: {_difference(path, name, told[name], found)}")


def _difference(path: Path, name: str, told: object, found: object) -> str:
    if name.endswith(".json"):
        return f"saved with another vocabulary than that of {path.with_name(name)}"
    config = path.with_name("config.yaml")
    return f"saved with {name} {json.dumps(told)}, and {config} has {json.dumps(found)}"
