"""Settings from files are plain data: nothing is imported, opened or guessed, all else refused."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from luong.toolkit.command import cli
from luong.toolkit.config import Config, Data, Model, Side, Training, recipes
from luong.toolkit.errors import ToolkitError, UsageError
from luong.toolkit.schema import leaves
from luong.toolkit.training import loop

SEED = "training:\n  seed: 1\n"
DATA = "data: {train: a.tsv, dev: b.tsv}\n"
# as version 0.1.0 wrote it before its last line said that it is the last
OLD = """\
data:
  train: train.tsv
  dev: 'no'
  test: null
  source:
    level: characters
    vocabulary_size: null
    min_frequency: 1
    lowercase: true
    normalization: none
  target:
    level: bpe
    vocabulary_size: 40
    min_frequency: 2
    lowercase: false
    normalization: NFC
  max_length: 5000
  on_bad_line: refuse
model:
  embedding_size: 8
  hidden_size: 12
  encoder_size: null
  encoder_layers: 1
  decoder_layers: 1
  cell: lstm
  bidirectional: true
  reverse_source: false
  bridge: true
  attend_end: false
  score: none
  learned_scale: false
  location_length: 100
  window: global
  half_width: null
  input_feeding: false
  tied_embeddings: false
  dropout: 0.1
  init_range: null
training:
  updates: 6
  batch_size: 128
  batch_unit: pairs
  accumulate: 1
  optimizer: adamw
  learning_rate: 1.0e-05
  schedule: cosine
  warmup: 200
  decay_start: null
  decay_every: null
  weight_decay: 0.01
  label_smoothing: 0.1
  clip_norm: 1.0
  average: 0.0
  precision: float32
  metric: loss
  validate_every: 3
  patience: null
  checkpoint_every: 2
  keep: 2
  tensorboard: false
  init_from: null
  seed: 1
"""


def refused(folder: Path, text: str | bytes, message: str) -> None:
    path = folder / "recipe.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ToolkitError) as caught:
        Config.load(path)
    assert re.match(rf"{re.escape(str(path))}(:\d+)?: {re.escape(message)}", str(caught.value))


def loaded(folder: Path, text: str) -> Config:
    (folder / "recipe.yaml").write_text(text, encoding="utf-8")
    return Config.load(folder / "recipe.yaml")


def trained(arguments: Sequence[object], monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The settings that `luong train` trains by."""
    found = list[Config]()

    def kept(config: Config, out: Path, limit: object) -> int:
        found.append(config)
        return 0

    monkeypatch.setattr(loop, "train", kept)
    cli.main(["train", *map(str, arguments)])
    return found


@pytest.mark.parametrize(
    "text", ["{class_path: evil.X}", "evil.X", "other.yaml", "{init_args: {}}"]
)
def test_nothing_is_imported_or_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "evil.py").write_text("class X: pass\n")
    (tmp_path / "other.yaml").write_text("hidden_size: 64\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "config.yaml"
    path.write_text(f"{DATA}model: {text}\n{SEED}")
    with pytest.raises(ToolkitError, match=re.escape(f"{path}: model")):
        Config.of_run(tmp_path)
    refused(tmp_path, f"{DATA}model: {text}\n", "model")
    for flag in ("--model", "--model.class_path", "--model.init_args.hidden_size", "--config"):
        assert trained([path, "--out", "x", flag, "other.yaml"], monkeypatch) == []
    assert "evil" not in sys.modules
    assert Path.cwd() == tmp_path


def test_the_environment_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "r.yaml").write_text(DATA)
    for name in ("LUONG_MODEL__HIDDEN_SIZE", "MODEL__HIDDEN_SIZE", "JSONARGPARSE_DEFAULT_ENV"):
        monkeypatch.setenv(name, "64")
    (config,) = trained([tmp_path / "r.yaml", "--out", "x"], monkeypatch)
    assert config.model == Model()


ALIAS = "expected a plain value, got an alias, an anchor or a tag"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {hidden_size: x}", "model.hidden_size: expected a whole number, got 'x'"),
        ("model: {dropout: x}", "model.dropout: expected a number, got 'x'"),
        ("model: {bridge: 2}", "model.bridge: expected true or false, got '2'"),
        ("model: {cell: rnn}", "model.cell: expected one of lstm, gru, got 'rnn'"),
        ("model: {cell: null}", "model.cell: expected one of lstm, gru, got null"),
        ("model: {half_width: 1.5}", "model.half_width: expected a whole number, or null, got '1"),
        ("model: {hidden_size: {}}", "model.hidden_size: expected a whole number, got null"),
        ("model: {hidden_size: 0x10}", "model.hidden_size: expected a whole number, got '0x10'"),
        ("model: {hidden_size: 0o17}", "model.hidden_size: expected a whole number, got '0o17'"),
        ("model: {hidden_size: 1:30}", "model.hidden_size: expected a whole number, got '1:30'"),
        ("model: {hidden_size: [8]}", "model.hidden_size: expected a value, got a list"),
        ("model: {hiden_size: 8}", "model.hiden_size: no such setting; did you mean model.hidden_"),
        (
            "traning: {updates: 8}",
            "traning.updates: no such setting; did you mean training.updates",
        ),
        ("wings: 2", "wings: no such setting"),
        ("model: 3", "model: expected settings (key: value), got '3'"),
        (DATA, "data: is there twice"),
        ("model: {cell: gru, cell: gru}", "model.cell: is there twice"),
        ("data.train: a", "data.train: is there twice"),
        ("? [a]\n: 3", "expected names as keys"),
        ("? {a: b}\n: 3", "expected names as keys"),
        (f"---\n{DATA}", "expected one document, got more"),
        ("model: &m {cell: gru}", f"model: {ALIAS}"),
        ("model: *m", f"model: {ALIAS}"),
        ("model: {cell: &c gru}", f"model.cell: {ALIAS}"),
        ("model: !!python/object:os.x {}", f"model: {ALIAS}"),
        ("model: {hidden_size: !!int 8}", f"model.hidden_size: {ALIAS}"),
        ("<<: {a: b}", "<<.a: no such setting"),
        (f"{'k' * 5000}: 3", "not valid YAML"),
        (f"? {'k' * 5000}\n: 3", f"{'k' * 60}...: no such setting"),
        (
            f"model: {{cell: {'x' * 5000}}}",
            f"model.cell: expected one of lstm, gru, got '{'x' * 60}...",
        ),
    ],
)
def test_a_setting_is_refused(tmp_path: Path, text: str, message: str) -> None:
    refused(tmp_path, DATA + text, message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training: {updates: 5}", "data.train: missing: the corpus to learn from"),
        ("", "data.train: missing: the corpus to learn from"),
        ("data: {train: , dev: b}", "data.train: expected text, got null"),
        ('data: {train: "a\\0", dev: b}', "data.train: expected text, got 'a\\x00'"),
        ('data: {train: "\\ud800", dev: b}', "data.train: expected text, got '\\ud800'"),
        ("- a", "expected lines key: value, got a list"),
        ("a", "expected lines key: value, got text"),
        ("{a: " * 9, "a.a.a.a: nested too deeply"),
        ("{a: " * 9000, "a.a.a.a: nested too deeply"),
        ("[" * 9000, "expected lines key: value, got a list"),
        ("a: {b: 5", "not valid YAML: expected ',' or '}', but got '<stream end>'"),
        ("\x00", "not valid YAML: unacceptable character"),
        (b"\xff\xfe", "not valid YAML: 'utf-8' codec can't decode byte 0xff"),
        ("#" * 70_000, "expected at most 65,536 bytes, got more"),
    ],
)
def test_a_recipe_is_refused(tmp_path: Path, text: str | bytes, message: str) -> None:
    began = time.monotonic()
    refused(tmp_path, text, message)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("size", [5 * 10**9, 10**25])
def test_sizes_have_limits(size: int) -> None:
    for name in ("embedding_size", "hidden_size", "encoder_size", "location_length"):
        message = f"model.{name}: expected at most 65,536, got {size}"
        with pytest.raises(UsageError, match=message):
            Config(Data("", ""), Model(**{name: size}))
    for name in ("updates", "batch_size", "accumulate", "validate_every", "keep", "warmup"):
        message = f"training.{name}: expected at most 4,294,967,296, got {size}"
        with pytest.raises(UsageError, match=message):
            Training(**{name: size})
    message = f"data.max_length: expected at most 4,294,967,296, got {size}"
    with pytest.raises(UsageError, match=message):
        Data("", "", max_length=size)
    message = f"data.source.vocabulary_size: expected at most 1,000,000, got {size}"
    with pytest.raises(UsageError, match=message):
        Data("", "", source=Side(vocabulary_size=size))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1.e-3", 0.001),
        (".5", 0.5),
        ("5", 5.0),
        ("+1E2", 100.0),
        ("1.0e-3", 0.001),
    ],
)
def test_numbers_are_written_as_anywhere(tmp_path: Path, text: str, value: float) -> None:
    assert (
        loaded(tmp_path, f"{DATA}training: {{learning_rate: {text}}}").training.learning_rate
        == value
    )


def test_words_are_what_their_place_makes_of_them(tmp_path: Path) -> None:
    text = (
        "data:\n  train: no\n  dev: 2020-01-01\n  test: 'null'\n  source: {level: words}\n"
        "  target:\nmodel: {score: none, bridge: no, attend_end: TRUE, half_width: ~}\n"
        "training: {updates: 1_000}\n"
    )
    config = loaded(tmp_path, text)
    assert (config.data.train, config.data.dev, config.data.test) == ("no", "2020-01-01", "null")
    assert (config.model.score, config.model.bridge, config.model.attend_end) == (
        "none",
        False,
        True,
    )
    assert (config.model.half_width, config.training.updates) == (None, 1000)
    assert config.data.target == Side()


def test_infinite_numbers_meet_their_limits(tmp_path: Path) -> None:
    for text in (".inf", "-.Inf", ".nan", "inf", "1e999"):
        recipe = f"{DATA}training: {{learning_rate: {text}}}"
        refused(tmp_path, recipe, "training.learning_rate: expected above 0 and finite, got ")


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    odd = ["null", "no", "1e-3", "", "a b: c # d", "é\u2028", '"', "'", " x ", "~", "a\n", "\udcff"]
    for i, name in enumerate(odd):
        config = Config(
            Data(name, odd[i - 1], test=None if i % 2 else name, source=Side(vocabulary_size=5)),
            Model(encoder_size=8, window="local_p", half_width=2, bridge=False),
            Training(learning_rate=1e-07, init_from=name),
        )
        config.save(tmp_path / "config.yaml")
        assert Config.of_run(tmp_path) == config
        assert Config.load(tmp_path / "config.yaml") == config


def test_settings_of_an_older_version(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(OLD)
    config = Config.of_run(tmp_path)
    assert config == Config(
        Data(
            "train.tsv",
            "no",
            source=Side("characters", lowercase=True, normalization="none"),
            target=Side("bpe", vocabulary_size=40, min_frequency=2),
        ),
        Model(8, 12, score="none"),
        Training(6, learning_rate=1e-5, metric="loss", validate_every=3, checkpoint_every=2),
    )
    path.write_text(OLD[:-1])
    with pytest.raises(ToolkitError, match="its end is missing"):
        Config.of_run(tmp_path)


def test_settings_lose_no_character_of_their_end(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    Config(Data("train.tsv", "dev.tsv"), training=Training(seed=12345)).save(path)
    for text in (path.read_text(), OLD):
        for length in range(len(text) - 40, len(text)):
            path.write_text(text[:length])
            with pytest.raises(ToolkitError, match="not the settings of a run: its end is missing"):
                Config.of_run(tmp_path)


def test_a_pipe_is_no_recipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "recipe.yaml")
    with pytest.raises(ToolkitError, match=re.escape("recipe.yaml: expected a file, got a pipe")):
        Config.load(tmp_path / "recipe.yaml")


def test_corpora_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "r.yaml").write_text(
        "data: {train: 'a.en,a.de', dev: ./b.tsv, test: cmudict:test}\n"
    )
    monkeypatch.chdir(tmp_path)
    (config,) = trained(["r.yaml", "--out", "x", "--init-from", "run"], monkeypatch)
    assert config.data.train == f"{tmp_path}/a.en,{tmp_path}/a.de"
    assert (config.data.dev, config.data.test) == (f"{tmp_path}/b.tsv", "cmudict:test")
    assert config.training.init_from == f"{tmp_path}/run"
    old = Config.load(Path("r.yaml"))  # as older versions stored it
    old = replace(old, training=replace(old.training, init_from="run"))
    assert old.differences(config) == config.differences(old) == []
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    assert [line.split(":")[0] for line in old.differences(config)] == [
        "data.train",
        "data.dev",
        "training.init_from",
    ]


def test_a_comma_in_the_name_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a,b"
    folder.mkdir()
    (folder / "c,d.tsv").touch()
    monkeypatch.chdir(folder)
    config = Config(Data("c,d.tsv", "e,f")).located()
    assert config.data.train == f"{folder}/c,d.tsv"
    assert config.data.dev == "e,f"  # else it would be four names


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--training.up", "9"], "--training.up: no such option of luong train"),
        (["--training.update=9"], "--training.update=9: no such option of luong train; did you m"),
        (["--model", "o.yaml"], "--model: no such option of luong train"),
        (["more"], "more: no such option of luong train"),
        (["--training.updates", "x"], "--training.updates: expected a whole number, got 'x'"),
        (["--training.updates", "0"], "--training.updates: expected at least 1, got 0"),
        (
            ["--model.window", "local_m"],
            "r.yaml: model.half_width: expected at least 1, with model",
        ),
    ],
)
def test_flags_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], message: str
) -> None:
    (tmp_path / "r.yaml").write_text(DATA)
    said = list[str]()
    monkeypatch.setattr(cli, "say", said.append)
    assert trained([tmp_path / "r.yaml", "--out", "x", *flags], monkeypatch) == []
    assert message in said[0]


def test_help_lists_every_setting_and_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "g2p-en", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for leaf in leaves(Config).values():
        assert f" --{leaf.key}" in text
        assert leaf.meaning
        assert " ".join(leaf.meaning.split()) in text
    for name in recipes():
        assert re.search(rf" {name} \w+", text)
    assert "(default: cmudict:train)" in text  # the recipe's
    assert "(default: null)" in text
    assert not re.search(r"\b(None|True|False|NoneType|int|str)\b", text)
