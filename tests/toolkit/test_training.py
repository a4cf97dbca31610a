from __future__ import annotations

import csv
import dataclasses
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from luong.toolkit import corpus, training
from luong.toolkit.config import Config, Training
from luong.toolkit.corpus import Pair
from luong.toolkit.errors import ToolkitError
from luong.toolkit.evaluating import evaluate
from luong.toolkit.translating import Translator, build_model
from luong.toolkit.vocabulary import Vocabulary


def config(recipe: Path, **settings: object) -> Config:
    loaded = Config.load(recipe)
    return dataclasses.replace(
        loaded, training=dataclasses.replace(loaded.training, updates=3, **settings)
    )


def weights(config: Config, out: Path) -> dict[str, torch.Tensor]:
    training.train(config, out)
    return load_file(out / "model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def rows(out: Path) -> list[dict[str, str]]:
    with (out / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_model_learns(model: Path, recipe: Path) -> None:
    test = evaluate(Translator.load(model), corpus.read(str(recipe.parent / "test.tsv")))
    assert test.wer < 15
    assert test.per < 5


def test_the_folder_holds_the_best_weights(model: Path, recipe: Path) -> None:
    dev = evaluate(Translator.load(model), corpus.read(str(recipe.parent / "dev.tsv")))
    assert dev.per == pytest.approx(min(float(row["dev_per"]) for row in rows(model)))
    assert [row["update"] for row in rows(model)] == ["100", "200"]
    assert sorted(path.name for path in model.iterdir()) == [
        "config.yaml",
        "metrics.csv",
        "model.safetensors",
        "source.json",
        "target.json",
    ]


def test_the_seed_determines_the_weights(recipe: Path, tmp_path: Path) -> None:
    one = weights(config(recipe, seed=1), tmp_path / "one")
    again = weights(config(recipe, seed=1), tmp_path / "again")
    other = weights(config(recipe, seed=2), tmp_path / "other")
    assert same(one, again)
    assert not same(one, other)


def test_a_finished_run_is_left_alone(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training.train(config(recipe), tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()}
    training.train(config(recipe), tmp_path / "run")
    assert "is finished" in capsys.readouterr().err
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()}


def test_an_unfinished_run_starts_again(recipe: Path, tmp_path: Path) -> None:
    once = weights(config(recipe), tmp_path / "run")
    (tmp_path / "run" / "metrics.csv").write_text(",".join(training.METRICS) + "\n")
    assert same(once, weights(config(recipe), tmp_path / "run"))
    assert rows(tmp_path / "run")[-1]["update"] == "3"


def test_a_folder_of_other_settings_is_refused_by_field(recipe: Path, tmp_path: Path) -> None:
    training.train(config(recipe), tmp_path)
    with pytest.raises(ToolkitError, match=r"\(training\.seed: 1, not 9\); choose another --out"):
        training.train(config(recipe, seed=9), tmp_path)


def test_a_folder_of_something_else_is_refused(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ToolkitError, match="holds something that is not a run"):
        training.train(config(recipe), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_bad_data_leave_no_folder(recipe: Path, tmp_path: Path) -> None:
    wrong = config(recipe)
    wrong = dataclasses.replace(wrong, data=dataclasses.replace(wrong.data, train="nowhere.tsv"))
    with pytest.raises(ToolkitError, match=r"nowhere\.tsv"):
        training.train(wrong, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_not_a_number_ends_the_run(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match=r"at update \d; try a smaller"):
        training.train(config(recipe, learning_rate=1e30, warmup=0), tmp_path / "run")


def test_rate_rises_then_falls_to_zero() -> None:
    settings = Training(updates=110, warmup=10)
    rates = [training.rate(settings, done) for done in range(111)]
    assert rates[:10] == pytest.approx([(i + 1) / 11 for i in range(10)])
    assert rates[10] == 1
    assert rates[60] == pytest.approx(0.5)  # half of the cosine
    assert rates[110] == pytest.approx(0)
    assert sorted(rates[10:], reverse=True) == rates[10:]


@torch.no_grad()
def test_validation_loss_is_the_mean_over_symbols(recipe: Path) -> None:
    pairs = [Pair("ab", "a b"), Pair("a", "a"), Pair("cde", "c d e")]
    settings = config(recipe)
    source = Vocabulary.build(settings.data.source, [pair.source for pair in pairs])
    target = Vocabulary.build(settings.data.target, [pair.target for pair in pairs])
    translator = Translator(build_model(settings, source, target).eval(), source, target)
    total, symbols = 0.0, 0
    for one in training.examples(pairs, source, target):
        logits = translator.model(
            torch.tensor([one.source]),
            torch.tensor([len(one.source) - 1]),
            torch.tensor([[1, *one.target[:-1]]]),
        )
        probabilities = torch.softmax(logits[0].double(), -1)
        total -= sum(math.log(probabilities[i, symbol]) for i, symbol in enumerate(one.target))
        symbols += len(one.target)
    for size in (1, 2, 3):
        assert training.validate(translator, pairs, size)["loss"] == pytest.approx(total / symbols)
