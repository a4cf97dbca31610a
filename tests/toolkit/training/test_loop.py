from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate.utils import set_seed
from safetensors.torch import load_file
from training_runs import assert_same_run, last, rows, small, whole_run

from luong.seq2seq.model import START
from luong.toolkit.config import Config, Training
from luong.toolkit.errors import ToolkitError
from luong.toolkit.inference.translator import Translator, build_model
from luong.toolkit.text import batches, corpus
from luong.toolkit.text.batches import Stream
from luong.toolkit.text.lines import Pair
from luong.toolkit.text.vocabulary import Vocabulary
from luong.toolkit.training import learner, loop, validation
from luong.toolkit.training.checkpoints import TrainingState
from luong.toolkit.training.preparing import prepare
from luong.toolkit.training.progress import Journal, make_console
from luong.toolkit.training.validation import validate


def weights(config: Config, out: Path) -> dict[str, torch.Tensor]:
    loop.train(config, out)
    return load_file(out / "model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_the_model_learns(model: Path, recipe: Path) -> None:
    pairs = corpus.read(str(recipe.parent / "test.tsv"))
    test = Translator.load(model).evaluate(*zip(*pairs, strict=True))
    assert test["wer"] < 15
    assert test["per"] < 5


def test_the_folder_holds_the_best_weights(model: Path, recipe: Path) -> None:
    pairs = corpus.read(str(recipe.parent / "dev.tsv"))
    dev = Translator.load(model).evaluate(*zip(*pairs, strict=True))
    assert dev["per"] == pytest.approx(min(float(row["dev_per"]) for row in rows(model)))
    assert [row["update"] for row in rows(model)] == ["200", "400"]
    assert sorted(path.name for path in model.iterdir()) == [
        ".lock",
        "checkpoints",
        "config.yaml",
        "data",
        "log.txt",
        "metrics.csv",
        "model.safetensors",
        "source.json",
        "target.json",
    ]


def test_the_seed_determines_the_weights(tmp_path: Path) -> None:
    one = weights(small(tmp_path, updates=3, seed=1), tmp_path / "one")
    again = weights(small(tmp_path, updates=3, seed=1), tmp_path / "again")
    other = weights(small(tmp_path, updates=3, seed=2), tmp_path / "other")
    assert same(one, again)
    assert not same(one, other)


def test_a_finished_run_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, out = small(tmp_path, updates=3), tmp_path / "run"
    loop.train(config, out)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert loop.train(config, out) == 0
    assert "is finished" in capsys.readouterr().err
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}


def test_a_folder_of_other_settings_is_refused_by_field(tmp_path: Path) -> None:
    loop.train(small(tmp_path, updates=3), tmp_path / "run")
    other = small(tmp_path, updates=3, seed=9)
    with pytest.raises(ToolkitError, match=r"\(training\.seed: 1, not 9\); choose another --out"):
        loop.train(other, tmp_path / "run")


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "thesis.tex").touch()
    with pytest.raises(ToolkitError, match="holds something that is not a run"):
        loop.train(small(tmp_path), out)
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]


def test_a_model_without_checkpoints_is_not_overwritten(tmp_path: Path) -> None:
    config, out = small(tmp_path, updates=3), tmp_path / "run"
    before = weights(config, out)
    shutil.rmtree(out / "checkpoints")
    with pytest.raises(ToolkitError, match="holds a model, but no checkpoint to go on from"):
        loop.train(config, out)
    assert same(before, load_file(out / "model.safetensors"))


def test_other_data_of_the_same_name_are_refused(tmp_path: Path) -> None:
    config, out = small(tmp_path), tmp_path / "run"
    loop.train(config, out, seconds=0)
    for part, name in (("training", config.data.train), ("dev", config.data.dev)):
        table = Path(name)
        lines = table.read_text().splitlines(keepends=True)
        table.write_text("".join(lines[:-1]))
        with pytest.raises(ToolkitError, match=f"the {part} data, .* have changed since this run"):
            loop.train(config, out)
        table.write_text("".join(lines))
    loop.train(config, out)
    assert_same_run(whole_run(config, tmp_path / "once"), out)


def test_bad_data_leave_no_folder(tmp_path: Path) -> None:
    wrong = small(tmp_path)
    wrong = replace(wrong, data=replace(wrong.data, train="nowhere.tsv"))
    with pytest.raises(ToolkitError, match=r"nowhere\.tsv"):
        loop.train(wrong, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_not_a_number_ends_the_run(tmp_path: Path) -> None:
    config = small(tmp_path, learning_rate=1e30, warmup=0)
    with pytest.raises(ToolkitError, match=r"at update \d; try a smaller"):
        loop.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()  # nothing was learnt: a smaller rate may have the name


def test_an_update_follows_its_formula(tmp_path: Path) -> None:
    """Two batches an update, their losses summed and divided by all their target symbols."""
    config = small(
        tmp_path,
        model={"dropout": 0.0},
        updates=1,
        accumulate=2,
        warmup=0,
        optimizer="sgd",
        clip_norm=1e9,
        weight_decay=0.0,
        label_smoothing=0.0,
        learning_rate=0.5,
        keep=1,
    )
    data = prepare(config.data, tmp_path / "other", Journal(make_console(quiet=True)))
    set_seed(config.training.seed)
    model = build_model(config, data.source, data.target)
    stream = Stream(data.train.lengths, 7, seed=1)
    loss, symbols = torch.zeros(()), 0
    for i in [*next(stream), *next(stream)]:
        one = data.train[int(i)]
        logits = model(
            torch.tensor([one.source]),
            torch.tensor([len(one.source) - 1]),
            torch.tensor([[START, *one.target[:-1]]]),
        )
        log_probs = torch.log_softmax(logits[0], -1)
        loss = loss - log_probs[range(len(one.target)), one.target].sum()
        symbols += len(one.target)
    (loss / symbols).backward()
    expected = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        expected[name] = parameter.data - 0.5 * parameter.grad
    for name, value in weights(config, tmp_path / "run").items():
        torch.testing.assert_close(value, expected[name], atol=1e-6, rtol=1e-5)
    row = rows(tmp_path / "run")[0]
    assert float(row["train_loss"]) == pytest.approx(loss.item() / symbols, rel=1e-5)


def test_a_long_gradient_is_cut(tmp_path: Path) -> None:
    settings = {"optimizer": "sgd", "weight_decay": 0.0, "warmup": 0, "learning_rate": 0.5}
    config = small(tmp_path, updates=1, clip_norm=1e-3, **settings)
    data = prepare(config.data, tmp_path / "other", Journal(make_console(quiet=True)))
    set_seed(config.training.seed)
    before = build_model(config, data.source, data.target).state_dict()
    after = weights(config, tmp_path / "run")
    squares = [((after[name] - before[name]).double() ** 2).sum() for name in after]
    assert math.sqrt(sum(squares)) == pytest.approx(0.5 * 1e-3, rel=1e-2)


def test_every_update_draws_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[float] = []

    def randomize(*arguments: object) -> None:
        kept(*arguments)
        drawn.append(torch.rand(()).item())
        kept(*arguments)

    kept = learner.randomize
    monkeypatch.setattr(learner, "randomize", randomize)
    whole_run(small(tmp_path, updates=20), tmp_path / "run")
    assert len(set(drawn)) == 20


def test_early_stopping_keeps_the_best(tmp_path: Path) -> None:
    config = small(
        tmp_path,
        updates=400,
        validate_every=2,
        patience=3,
        metric="loss",
        learning_rate=0.3,
        warmup=0,
        schedule="constant",
    )
    out = whole_run(config, tmp_path / "run")
    losses = [float(row["dev_loss"]) for row in rows(out)]
    assert len(losses) < 200
    assert losses.index(min(losses)) == len(losses) - 1 - 3
    prepared = prepare(config.data, out, Journal(make_console(quiet=True)))
    best = validate(Translator.load(out), prepared.dev, "loss")
    assert best["loss"] == pytest.approx(min(losses), rel=1e-5)
    loop.train(config, out)
    assert len(rows(out)) == len(losses)  # it is finished


@pytest.mark.parametrize(
    ("metric", "columns"),
    [
        ("per", ["dev_loss", "dev_per", "dev_wer"]),
        ("exact", ["dev_loss", "dev_exact"]),
        ("bleu", ["dev_loss", "dev_bleu"]),
        ("loss", ["dev_loss"]),
    ],
)
def test_the_metric_is_measured(metric: str, columns: list[str], tmp_path: Path) -> None:
    out = whole_run(small(tmp_path, metric=metric, updates=4), tmp_path / "run")
    assert list(rows(out)[0])[4:] == columns


def test_the_better_metric_wins_and_then_the_loss() -> None:
    settings = Training(metric="bleu", updates=100, patience=2)
    state = TrainingState(data="")
    values = [(3.0, 1.0), (2.0, 0.5), (3.0, 0.9), (3.0, 0.9), (4.0, 9.0), (1.0, 0.1), (3.9, 0.1)]
    outcomes = []
    for bleu, loss in values:
        state.update += 1
        state.loss, state.tokens = 6.0, 4
        better = loop.record(state, settings, {"loss": loss, "bleu": bleu})
        outcomes.append((better, state.is_done(settings.updates, settings.patience)))
        assert state.rows[-1]["train_loss"] == 1.5
        assert (state.loss, state.tokens) == (0, 0)
    assert [better for better, _ in outcomes] == [True, False, True, False, True, False, False]
    assert [finished for _, finished in outcomes] == [False] * 6 + [True]


def test_half_precision_learns_nearly_the_same(tmp_path: Path) -> None:
    losses = []
    for precision in ("float32", "bf16"):
        config = small(tmp_path, precision=precision, model={"dropout": 0.0})
        out = whole_run(config, tmp_path / precision)
        losses.append([float(row["train_loss"]) for row in rows(out)])
        assert all(value.dtype == torch.float32 for value in load_file(last(out)).values())
    assert losses[1] != losses[0]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def test_the_average_is_what_is_kept(tmp_path: Path) -> None:
    """From all weights that there were, one checkpoint an update."""
    config = small(tmp_path, updates=6, average=0.4, checkpoint_every=1, keep=9, metric="loss")
    out = whole_run(config, tmp_path / "run")
    paths = sorted((out / "checkpoints").iterdir())
    each = [load_file(path)["model.decoder.output.weight"].double() for path in paths]
    expected = each[0]
    for k, value in enumerate(each[1:], 1):
        decay = min(0.4, (1 + k) / (10 + k))
        expected = decay * expected + (1 - decay) * value
    kept = load_file(out / "model.safetensors")["decoder.output.weight"].double()
    torch.testing.assert_close(kept, expected, atol=1e-6, rtol=1e-5)


def test_a_model_starts_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = whole_run(small(tmp_path, updates=2), tmp_path / "first")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "train.tsv").write_text("ab\ta b\nxa\tx a\n")
    (tmp_path / "other" / "dev.tsv").write_text("ba\tb a\n")
    config = small(tmp_path / "other", updates=1, init_from=str(first), learning_rate=1e-12)
    tuned = whole_run(config, tmp_path / "tuned")
    for name in ("source.json", "target.json"):  # no symbol for "x"
        assert (tuned / name).read_bytes() == (first / name).read_bytes()
    one, other = load_file(first / "model.safetensors"), load_file(tuned / "model.safetensors")
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, atol=1e-9, rtol=0)
    wider = replace(config, model=replace(config.model, hidden_size=8))
    message = r"training\.init_from: .*first has other settings \(model\.hidden_size: 6, not 8\)"
    with pytest.raises(ToolkitError, match=message):
        loop.train(wider, tmp_path / "wider")
    missing = replace(config, training=replace(config.training, init_from="nowhere"))
    with pytest.raises(ToolkitError, match="nowhere: not the folder of a trained model"):
        loop.train(missing, tmp_path / "missing")


def test_tensorboard_has_every_update_once(tmp_path: Path) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard"
    )
    config = small(tmp_path, updates=4, validate_every=2, checkpoint_every=100, tensorboard=True)
    out = tmp_path / "run"
    while not (out / "metrics.csv").exists() or len(rows(out)) < 2:
        loop.train(config, out, seconds=0)
    events = accumulator.EventAccumulator(str(out / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3, 4]
    assert [event.step for event in events.Scalars("dev/per")] == [2, 4]
    assert events.Scalars("dev/per")[1].value == pytest.approx(float(rows(out)[1]["dev_per"]))


@torch.no_grad()
def test_validation_loss_is_the_mean_over_symbols(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [Pair("ab", "a b"), Pair("a", "a"), Pair("cde", "c d e")]
    settings = Config.load(recipe)
    source = Vocabulary.build(settings.data.source, [pair.source for pair in pairs])
    target = Vocabulary.build(settings.data.target, [pair.target for pair in pairs])
    translator = Translator(build_model(settings, source, target).eval(), source, target)
    total, symbols = 0.0, 0
    for one in batches.examples(pairs, source, target):
        logits = translator.model(
            torch.tensor([one.source]),
            torch.tensor([len(one.source) - 1]),
            torch.tensor([[1, *one.target[:-1]]]),
        )
        probabilities = torch.softmax(logits[0].double(), -1)
        total -= sum(math.log(probabilities[i, symbol]) for i, symbol in enumerate(one.target))
        symbols += len(one.target)
    for size in (1, 2, 3):
        monkeypatch.setattr(validation, "_ROWS", size)
        assert validate(translator, pairs, "loss")["loss"] == pytest.approx(total / symbols)
