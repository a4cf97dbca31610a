"""The packaged recipes, and the settings of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from luong.seq2seq import Seq2Seq
from luong.toolkit.config import RECIPES, Config, Data, Model
from luong.toolkit.errors import UsageError
from luong.toolkit.inference.translator import build_model

NAMES = (
    "align-small",
    "g2p-en",
    "g2p-en-best",
    "g2p-sigmorphon",
    "inflect",
    "luong2015",
    "translate-small",
)


def load(name: str, folder: Path) -> Config:
    """The recipe with corpora, where it leaves them to the user."""
    tree = yaml.safe_load((RECIPES / f"{name}.yaml").read_text(encoding="utf-8"))
    tree["data"] = {"train": "train.tsv", "dev": "dev.tsv"} | tree["data"]
    (folder / "config.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    return Config.load(folder / "config.yaml")


def build(config: Config, source: int, target: int) -> Seq2Seq:
    """The model, without memory for its weights."""
    with torch.device("meta"):
        return build_model(config, range(source), range(target))  # of which it takes the lengths


def test_all_recipes_are_here() -> None:
    assert tuple(sorted(path.stem for path in RECIPES.glob("*.yaml"))) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_a_model_to_build(name: str, tmp_path: Path) -> None:
    config = load(name, tmp_path)
    model = build(config, 31, 43)
    assert model.decoder.input_feeding == config.model.input_feeding
    assert config.training.updates % config.training.validate_every == 0


def test_the_best_g2p_model_is_small(tmp_path: Path) -> None:
    model = build(load("g2p-en-best", tmp_path), 31, 43)
    assert sum(parameter.numel() for parameter in model.parameters()) < 4e6


def test_the_paper_is_as_it_says(tmp_path: Path) -> None:
    config = load("luong2015", tmp_path)
    model = build(config, 50004, 50004)
    for side, layers in (("encoder", 4), ("decoder", 4)):
        part = getattr(model, side)
        assert part.embedding.weight.shape == (50004, 1000)
        assert [layer.hidden_size for layer in part.layers] == [1000] * layers
        assert not any(layer.bidirectional for layer in part.layers)
    assert model.decoder.attention.window.half_width == 10
    epoch = 4_500_000 / 128
    assert config.training.updates == pytest.approx(12 * epoch, rel=1e-3)
    assert config.training.decay_start == pytest.approx(8 * epoch, rel=1e-3)
    assert config.training.decay_every == pytest.approx(epoch, rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_size": 0}, "model.hidden_size: expected at least 1, got 0"),
        ({"hidden_size": 3}, "hidden_size: expected an even number, .*bidirectional true, got 3"),
        ({"encoder_size": 3}, "encoder_size: expected an even number, .*bidirectional .*, got 3"),
        ({"encoder_size": 0}, "encoder_size: expected at least 1, got 0"),
        ({"encoder_size": 8, "score": "dot"}, "encoder_size: expected 256, .*score dot, got 8"),
        ({"encoder_layers": 5}, "encoder_layers: expected from 1 to 4, got 5"),
        ({"decoder_layers": 0}, "decoder_layers: expected from 1 to 4, got 0"),
        ({"location_length": 0}, "location_length: expected at least 1, got 0"),
        ({"window": "local_m"}, "half_width: expected at least 1, .*window local_m, got null"),
        ({"window": "local_p", "half_width": 0}, "half_width: expected at least 1, .*, got 0"),
        ({"score": "none", "window": "local_m"}, "window: expected global, with model.score none"),
        ({"half_width": 5}, "half_width: expected null, with model.window global, got 5"),
        ({"tied_embeddings": True}, "embedding_size: expected 256, .*tied_embeddings true, got"),
        ({"dropout": 1.0}, "dropout: expected from 0 to below 1, got 1.0"),
        ({"init_range": 0.0}, "init_range: expected null, or above 0 and finite, got 0.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Config(Data("", ""), Model(**settings))
