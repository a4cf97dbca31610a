"""The translator from Python."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor
from training_runs import spell

import luong
from luong.seq2seq import Decoding, Sampling, Settings, build
from luong.seq2seq.model import UNKNOWN
from luong.toolkit.config import Side
from luong.toolkit.devices import default_device
from luong.toolkit.errors import ToolkitError
from luong.toolkit.inference.translator import Translation, Translator
from luong.toolkit.text import batches
from luong.toolkit.text.vocabulary import Vocabulary
from rounding import assert_rounded

WORDS = [
    "".join(random.Random(i).choices("abcde", k=random.Random(i).randint(0, 12))) for i in range(70)
]


def same(found: Sequence[Translation], expected: Sequence[Translation]) -> None:
    """In float64."""
    assert [f.text for f in found] == [e.text for e in expected]
    assert [f.finished for f in found] == [e.finished for e in expected]
    scores = [e.score for e in expected]
    assert [f.score for f in found] == pytest.approx(scores, rel=1e-10, abs=1e-10)
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f.weights, e.weights, rtol=0, atol=1e-10)


decodings = pytest.mark.parametrize(
    "decoding",
    [
        Decoding(),
        Decoding(beam=5, n_best=3),
        Decoding(beam=5, length_penalty=1.0),
        Decoding(n_best=3, sampling=Sampling(temperature=2.0)),
    ],
)


@decodings
def test_batch_size_order_and_company_change_nothing(exact: Translator, decoding: Decoding) -> None:
    translator = exact
    expected = translator.search(WORDS, decoding, batch_size=64)
    for size in (1, 7):
        for found, other in zip(
            translator.search(WORDS, decoding, batch_size=size), expected, strict=True
        ):
            same(found, other)
    if decoding.sampling:  # goes by the number of the line
        same(translator.search(WORDS[20:], decoding, first=20)[3], expected[23])
        return
    order = random.Random(3).sample(range(len(WORDS)), 40)
    for i, found in zip(order, translator.search([WORDS[i] for i in order], decoding), strict=True):
        same(found, expected[i])


@decodings
def test_in_float32_company_changes_only_rounding(
    translator: Translator, exact: Translator, decoding: Decoding
) -> None:
    def numbers(found: list[list[Translation]], dtype: torch.dtype) -> list[Tensor]:
        outputs = [output for some in found for output in some]
        weights = torch.cat([output.weights.flatten() for output in outputs])
        return [torch.tensor([output.score for output in outputs], dtype=dtype), weights]

    true = exact.search(WORDS, decoding)
    alone = translator.search(WORDS, decoding, batch_size=1)
    scores, weights = numbers(true, torch.float64)
    # The score of an output is a sum over its symbols of logits, with h~ of at most 1; scores of
    # the attention are logarithms of weights.
    logit = translator.model.decoder.output.weight.abs().sum(1).max()
    longest = max(len(output.tokens) + 1 for some in true for output in some)
    scales = [logit * longest, -weights.clamp(min=1e-30).log().min()]
    for size in (7, 64):
        found = translator.search(WORDS, decoding, batch_size=size)
        texts = [[output.text for output in some] for some in found]
        assert texts == [[output.text for output in some] for some in true]
        ours, plain = (numbers(x, torch.float32) for x in (found, alone))
        assert_rounded(ours, plain, [scores, weights], scales)


def test_scores_are_those_of_forced_decoding(exact: Translator) -> None:
    translator = exact
    lines = [word for word in WORDS if word]
    found = translator.search(lines, Decoding(beam=5, n_best=5))
    for outputs in found:
        assert len({output.text for output in outputs}) == len(outputs)
    pairs = [(line, f) for line, fs in zip(lines, found, strict=True) for f in fs if f.finished]
    assert len(pairs) > 200
    scores = translator.score([line for line, _ in pairs], [f.text for _, f in pairs])
    assert [s.score for s in scores] == pytest.approx([f.score for _, f in pairs], abs=1e-9)
    for (_, output), score in zip(pairs, scores, strict=True):
        assert len(score.steps) == len(output.tokens) + 1
        assert score.score == pytest.approx(sum(score.steps))


def test_what_an_output_is(translator: Translator) -> None:
    (found,) = translator.translate(["abbc"], Decoding(beam=3))
    assert found.text == spell("abbc")
    assert found.tokens == found.text.split()
    assert found.source == list("abbc")
    assert found.weights.shape == (len(found.tokens), 4)
    assert found.alignment == [(int(row.argmax()), i) for i, row in enumerate(found.weights)]
    (several,) = translator.search(["abbc"], Decoding(beam=3, n_best=3))
    assert several[0].text == found.text
    assert len(several) == 3


@pytest.mark.parametrize("line", ["", " ", "\t \u3000"])
def test_a_blank_line_gives_a_blank_one(translator: Translator, line: str) -> None:
    (found,) = translator.translate([line])
    assert (found.text, found.score, found.tokens, found.alignment) == ("", 0.0, [], [])
    assert translator.search([line], Decoding(beam=2, n_best=2))[0][0].text == ""


def test_another_default_device_changes_nothing(model: Path, translator: Translator) -> None:
    expected = translator.translate(WORDS[:5], Decoding(beam=3))
    with torch.device("meta"):
        same(Translator.load(model).translate(WORDS[:5], Decoding(beam=3)), expected)


def test_threads_may_share_a_model(exact: Translator) -> None:
    translator = exact
    expected = translator.translate(WORDS, Decoding(beam=3))
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: translator.translate(WORDS, Decoding(beam=3)), range(8)):
            same(found, expected)


def test_a_long_line_is_cut_and_a_long_batch_is_divided(exact: Translator) -> None:
    translator = exact
    lines = ["ab" * 40, "c", "abc" * 60]
    cut, short, long = translator.search(lines, Decoding(), max_source=50)
    assert (cut[0].dropped, short[0].dropped, long[0].dropped) == (30, 0, 130)
    assert cut[0].source == list(lines[0][:50])
    same(cut, [translator.translate([lines[0][:50]])[0]])
    assert cut[0].weights.shape[1] == 50


def test_a_prefix_is_kept(translator: Translator) -> None:
    for outputs in translator.search(WORDS, Decoding(beam=3, n_best=3), prefix="e: a"):
        assert all(o.text.startswith("e: a") for o in outputs if o.source)
    with pytest.raises(ToolkitError, match=r"prefix: never seen in training: q$"):
        translator.search(["a"], Decoding(), prefix="a q")


def unknowing(seed: int = 0, level: Literal["words", "bpe"] = "words", **shape: str) -> Translator:
    """A model of words that puts out unknown symbols now and then, in float64."""
    torch.manual_seed(seed)
    source = Vocabulary.build(Side(level, lowercase=True), ["the cat sat"])
    target = Vocabulary.build(Side("words"), ["le chat"])
    model = build(Settings(6, 8, **shape), len(source), len(target)).eval()
    for parameter in model.parameters():
        torch.nn.init.uniform_(parameter, -2, 2)
    model.decoder.output.weight.data[UNKNOWN] += 0.5
    return Translator(model.double(), source, target)


@pytest.mark.parametrize("level", ["words", "bpe"])
@pytest.mark.parametrize("seed", range(3))
def test_unknown_words_are_replaced_by_what_they_attend_to_as_it_is_written(
    seed: int, level: Literal["words", "bpe"]
) -> None:
    translator = unknowing(seed, level)
    line = "The  <unk> CAT Ωmega" if level == "words" else "The  ▁<unk> CAT ▁ Ωmega"
    words = line.split()
    decoding = Decoding(beam=4, n_best=4)
    (before,) = translator.search([line], decoding)
    (after,) = translator.search([line], decoding, replace_unknown={})
    (looked_up,) = translator.search([line], decoding, replace_unknown={"CAT": "Katze"})
    assert any("<unk>" in output.tokens for output in before)
    for plain, copied, found in zip(before, after, looked_up, strict=True):
        attended = [words[i] for i, _ in plain.alignment]
        expected = [
            word if token == "<unk>" else token
            for token, word in zip(plain.tokens, attended, strict=True)
        ]
        assert copied.tokens == expected
        assert copied.text == " ".join(expected)
        assert found.tokens == [
            "Katze" if token == "<unk>" and word == "CAT" else other
            for token, word, other in zip(plain.tokens, attended, expected, strict=True)
        ]
        assert copied.score == plain.score


def test_what_attends_to_nothing_has_no_links_and_keeps_its_unknown_words() -> None:
    translator = unknowing(score="none")
    decoding = Decoding(beam=4, n_best=4)
    before = translator.search(["the cat"], decoding)[0]
    after = translator.search(["the cat"], decoding, replace_unknown={})[0]
    assert any("<unk>" in output.tokens for output in before)
    assert [output.tokens for output in after] == [output.tokens for output in before]
    assert all(output.alignment == [] for output in after)


def test_an_ensemble_of_one_model_is_that_model(model: Path, exact: Translator) -> None:
    assert len(luong.load(model, str(model)).models) == 2
    both = Translator.load(model, model, dtype=torch.float64)
    for found, expected in zip(
        both.translate(WORDS, Decoding(beam=3)),
        exact.translate(WORDS, Decoding(beam=3)),
        strict=True,
    ):
        same([found], [expected])


def test_an_ensemble_scores_by_the_mean_probability() -> None:
    one, two = unknowing(1), unknowing(2)
    both = Translator(one.model, one.source, one.target, [two.model])
    (found,) = both.search(["the cat"], Decoding(beam=3))
    steps = [t.score(["the cat"], [found[0].text])[0].steps for t in (one, two, both)]
    means = torch.tensor(steps[:2], dtype=torch.float64).exp().mean(0).log()
    assert steps[2] == pytest.approx(means.tolist(), abs=1e-10)
    if found[0].finished:
        assert found[0].score == pytest.approx(sum(steps[2]), abs=1e-10)


@pytest.mark.parametrize("side", ["source", "target"])
def test_an_ensemble_of_other_vocabularies_is_refused(
    model: Path, tmp_path: Path, side: str
) -> None:
    for name in ("config.yaml", "source.json", "target.json", "model.safetensors"):
        (tmp_path / name).write_bytes((model / name).read_bytes())
    luong.load(model, tmp_path)
    vocabulary = tmp_path / f"{side}.json"
    vocabulary.write_text(vocabulary.read_text().replace('"a"', '"q"'))
    with pytest.raises(ToolkitError, match=f"{tmp_path}: its {side} vocabulary is not that of"):
        luong.load(model, tmp_path)


def test_translate_gives_the_best_output_that_search_finds(exact: Translator) -> None:
    for decoding in (Decoding(beam=3), Decoding(sampling=Sampling(seed=7)), None):
        found = exact.translate(WORDS, decoding, prefix="e: a", batch_size=9)
        same(found, [best for (best,) in exact.search(WORDS, decoding, prefix="e: a")])
    unknown = unknowing()
    decoding = Decoding(min_extra=3)
    (copied,) = unknown.translate(["the cat"], decoding, prefix="le", replace_unknown={})
    ((other,),) = unknown.search(["the cat"], decoding, prefix="le", replace_unknown={})
    assert copied.tokens == other.tokens
    assert "<unk>" not in copied.tokens


def test_translate_gives_no_more_than_one_output_of_a_line(translator: Translator) -> None:
    message = "n_best: expected 1, got 3; for several outputs of a line call `search`"
    for decoding in (Decoding(beam=3, n_best=3), Decoding(n_best=3, sampling=Sampling())):
        with pytest.raises(ValueError, match=message):
            translator.translate(["a"], decoding)
        with pytest.raises(ValueError, match=message):
            translator.evaluate(["a"], ["a"], decoding)


def test_unknown_is_scored_as_any_symbol() -> None:
    translator = unknowing()
    (score,) = translator.score(["the cat"], ["le <unk> perroquet"])
    symbols = translator.target.encode(["le q q"])[0]
    assert symbols[1] == UNKNOWN
    source = torch.tensor(translator.source.encode(["the cat"]))
    logits = translator.model(source, torch.tensor([2]), torch.tensor([[1, *symbols[:-1]]]))
    log_probs = torch.log_softmax(logits[0].detach(), -1)
    expected = [float(log_probs[i, symbol]) for i, symbol in enumerate(symbols)]
    assert score.steps == pytest.approx(expected, abs=1e-10)


def test_loading_is_lazy_and_says_what_is_missing(model: Path) -> None:
    code = (
        "import sys, luong; assert 'torch' not in sys.modules; "
        "sys.modules['tokenizers'] = None; luong.load(sys.argv[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(model)], capture_output=True, text=True, check=False
    )
    expected = "ModuleNotFoundError: tokenizers is not installed: pip install 'luong[toolkit]'"
    assert done.stderr.splitlines()[-1] == expected


def test_the_documented_lines_run(model: Path) -> None:
    model_ = luong.load(str(model))
    best = model_.translate(["abc"], luong.seq2seq.Decoding(beam=5))[0]
    assert model_.score(["abc"], [best.text])[0].score == pytest.approx(best.score, abs=1e-5)


def test_lines_may_come_from_a_generator(translator: Translator) -> None:
    same(translator.translate(word for word in WORDS[:3]), translator.translate(WORDS[:3]))


def test_links_from_python(translator: Translator) -> None:
    assert translator.align(["abc", ""], ["a b c", ""]) == [[(0, 0), (1, 1), (2, 2)], []]
    thin = translator.align(["abbc"], [spell("abbc")], threshold=0.01)
    assert thin == [sorted(thin[0], key=lambda link: link[::-1])]
    assert len(thin[0]) > 3


def test_what_is_shown_of_a_translator_and_a_translation(translator: Translator) -> None:
    assert re.fullmatch(
        r"<Translator General; LSTM 1\+1 x 48; 9 source and 14 target symbols; \w+(:\d)?>",
        repr(translator),
    )
    both = Translator(translator.model, translator.source, translator.target, [translator.model])
    assert "; an ensemble of 2; " in repr(both)
    (found,) = translator.translate(["abc"])
    assert re.fullmatch(r"<Translation 'a b c', score -\d\.\d{4}>", repr(found))
    (cut,) = translator.translate(["abc"], Decoding(max_ratio=0, max_extra=2))
    assert repr(cut).endswith(", cut>")


def test_a_device_that_is_not_there(model: Path) -> None:
    for name in ("meta", "cuda:77", "abacus", ""):
        with pytest.raises(ValueError, match=f"device: expected cpu, or a GPU .* got '{name}'"):
            luong.load(model, device=name)
    assert luong.load(model).device == torch.device(default_device())


def test_scores_in_several_blocks_are_those_in_one(
    exact: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, targets = WORDS[:20], [spell(word) for word in WORDS[1:21]]
    expected = exact.score(sources, targets)
    monkeypatch.setattr(batches, "CELLS", 2 * exact.numbers)  # two steps of a pair at a time
    for found, other in zip(exact.score(sources, targets), expected, strict=True):
        assert found.steps == pytest.approx(other.steps, abs=1e-10)
