from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
import torch
from hypothesis import given
from hypothesis import strategies as st
from training_runs import Run, spell

from luong.seq2seq import Settings, build
from luong.seq2seq.model import START, UNKNOWN
from luong.toolkit.config import Side
from luong.toolkit.errors import ToolkitError, UsageError
from luong.toolkit.inference import evaluation, measures
from luong.toolkit.inference.measures import EDIT_RATES, Answer, Measurement, Text, measure
from luong.toolkit.inference.translator import Translator
from luong.toolkit.text import batches
from luong.toolkit.text.lines import Pair
from luong.toolkit.text.vocabulary import Vocabulary

OUTPUTS = [
    "the cat sat on the mat .",
    "There is a cat on a mat",
    "he reads the book because he was interested",
    "",
    "world history",
]
REFERENCES = [
    ["The cat sat on the mat .", "the cat was on the mat ."],
    ["there is a cat on the mat"],
    ["he read the book because he was interested in world history", "he reads"],
    ["nothing"],
    ["the history of the world", "world history", "of the world"],
]


def texts(line: str) -> Text:
    return Text(line, line.split())


def answers() -> list[Answer]:
    return measures.given(OUTPUTS, REFERENCES)


def test_rates_worked_by_hand() -> None:
    words = {
        "one": ("w an", ["w un", "w an"]),  # right: equals a reference. 0 edits, length 2
        "two": ("t u", ["t u u", "t w"]),  # 1 edit to both: the shorter counts. length 2
        "three": ("f r e e", ["th r e e", "s r e"]),  # 1 edit to the first, 2 to the other
        "four": ("", ["f o r"]),  # 3 edits, length 3
    }
    found = [
        Answer(texts(source), texts(output), [texts(line) for line in lines])
        for source, (output, lines) in words.items()
    ]
    assert measure("wer", found).of() == pytest.approx(100 * 3 / 4)
    assert measure("exact", found).of() == pytest.approx(100 * 1 / 4)
    assert measure("per", found).of() == pytest.approx(100 * (0 + 1 + 1 + 3) / (2 + 2 + 4 + 3))
    assert measure("wer", found, sentences=True).of() == measure("per", found).of()
    # in characters: 0 of 4; "t u" to "t w" 1 of 3; "f r e e" to "th r e e" 2 of 8, to "s r e" 3 of
    # 5; 5 of 5
    assert measure("cer", found).of() == pytest.approx(100 * (0 + 1 + 2 + 5) / (4 + 3 + 8 + 5))


def test_an_edit_is_an_edit() -> None:
    """Not a transposition, as in Damerau's distance; nor a substitution counted twice."""
    (found,) = (measures.given(["a b c"], [["b a d"]]),)
    assert measure("per", found).of() == pytest.approx(100)
    assert measure("per", measures.given(["a b"], [["a b c d"]])).of() == pytest.approx(50)
    assert measure("per", measures.given(["a b c d"], [["a b"]])).of() == pytest.approx(100)


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize(
    ("name", "metric"),
    [("bleu", sacrebleu.BLEU), ("chrf", sacrebleu.CHRF), ("ter", sacrebleu.TER)],
)
def test_scores_are_sacrebleus(name: str, metric: type, lowercase: bool) -> None:
    longest = max(map(len, REFERENCES))
    streams = [[r[k] if k < len(r) else None for r in REFERENCES] for k in range(longest)]
    oracle = metric(
        **({"case_sensitive": not lowercase} if name == "ter" else {"lowercase": lowercase})
    )
    expected = oracle.corpus_score(OUTPUTS, streams).score
    found = measure(name, answers(), lowercase=lowercase)
    assert found.of() == pytest.approx(expected, rel=1e-9)
    assert found.signature == str(oracle.get_signature())
    part = oracle.corpus_score(OUTPUTS[:2], [stream[:2] for stream in streams]).score
    assert found.of(np.array([0, 1])) == pytest.approx(part, rel=1e-9)


def test_bleu_worked_by_hand() -> None:
    """Precisions 4/5, 3/4, 2/3, 1/2, and no brevity penalty."""
    found = measures.given(["a b c d x"], [["a b c d e"]])
    expected = 100 * math.exp(sum(map(math.log, (4 / 5, 3 / 4, 2 / 3, 1 / 2))) / 4)
    assert measure("bleu", found, tokenize="none").of() == pytest.approx(expected)
    assert "tok:none" in str(measure("bleu", found, tokenize="none").signature)
    with pytest.raises(UsageError, match=r"--tokenize: expected one of 13a, .* got 'words'"):
        measure("bleu", found, tokenize="words")


@given(st.lists(st.integers(0, 4), min_size=1), st.randoms(use_true_random=False))
def test_a_score_is_of_sums(rows: list[int], rng: object) -> None:
    """Of a sample as of the same sources written out."""
    found = answers()
    for name in EDIT_RATES:
        sample = measure(name, [found[k] for k in rows]).of()
        assert measure(name, found).of(np.array(rows)) == pytest.approx(sample)


def test_intervals() -> None:
    """Of a mean of coins, whose standard error is known; the same for the same seed."""
    rng = np.random.default_rng(3)
    coins = np.stack([rng.random(400) < 0.3, np.ones(400)], 1).astype(float)
    rate = Measurement("exact", coins, lambda sums: float(100 * sums[0] / sums[1]))
    low, high = rate.interval(2000, seed=7)
    p = coins[:, 0].mean()
    error = 1.96 * math.sqrt(p * (1 - p) / 400)
    assert (low, high) == pytest.approx((100 * (p - error), 100 * (p + error)), abs=0.5)
    assert (low, high) == rate.interval(2000, seed=7)
    assert (low, high) != rate.interval(2000, seed=8)
    assert rate.interval(2000, seed=7, level=0.5)[0] > low


def test_equal_sources_are_one() -> None:
    found = measures.given(["x", "y", "x"], [["x"], ["z"], ["w"]], ["a", "b", "a"])
    assert [len(answer.references) for answer in found] == [2, 1]
    assert measure("exact", found).of() == 50
    with pytest.raises(ToolkitError, match=r"output 3: 'v', but for the same source, 'a', .* 'x'"):
        measures.given(["x", "y", "v"], [["x"], ["z"], ["w"]], ["a", "b", "a"])


def test_ranges_of_length() -> None:
    lines = ["a " * length for length in (1, 1, 1, 1, 2, 3, 3, 4, 9, 30)]
    found = measures.given(lines, [[line] for line in lines])
    buckets = list(measures.by_length(found, 3))
    assert [(b.shortest, b.longest, b.rows.sum()) for b in buckets] == [
        (1, 1, 4),
        (2, 3, 3),
        (4, 30, 3),
    ]
    assert sum(b.rows for b in buckets).tolist() == [1] * 10
    (all_,) = measures.by_length(found[:3], 5)
    assert (all_.shortest, all_.longest, all_.rows.sum()) == (1, 1, 3)


def test_perplexity_symbol_by_symbol(model: Path) -> None:
    translator = Translator.load(model)
    pairs = [
        Pair("abc", "a b c"),
        Pair("dd", "d:"),
        Pair("e", "a"),
        Pair("abc", "a c"),
        Pair("e", ""),
    ]
    losses: dict[str, list[float]] = {}
    for pair in pairs:
        (source,) = translator.source.encode([pair.source])
        (target,) = translator.target.encode([pair.target])
        memory, state = translator.model.encode(*batches.sources([source]))
        for read, wanted in zip([START, *target[:-1]], target, strict=True):
            step = translator.model.decoder.step(torch.tensor([[read]]), state, memory)
            state = step.state
            losses.setdefault(pair.source, []).append(
                -step.logits[0, 0].log_softmax(-1)[wanted].item()
            )
    for size in (1, 2, 64):
        found = evaluation.perplexity(translator, pairs, batch_size=size)
        every = [loss for own in losses.values() for loss in own]
        assert found.of() == pytest.approx(math.exp(sum(every) / len(every)), rel=1e-4)
        for row, own in enumerate(losses.values()):
            assert found.of(np.array([row])) == pytest.approx(
                math.exp(sum(own) / len(own)), rel=1e-4
            )


def test_an_ensemble_of_the_same_model_is_that_model(run: Run, model: Path) -> None:
    command = ("evaluate", model, "--metrics", "wer,perplexity", "--beam", 2, "--json")
    alone, both = (json.loads(run(*command, *more).stdout) for more in ((), ("--ensemble", model)))
    assert both == alone | {"perplexity": pytest.approx(alone["perplexity"], rel=1e-5)}


def test_outputs_measured_are_those_translated(run: Run, model: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("abba\nbaba\n")
    long = ("--beam", 3, "--length-penalty", 20)  # prefers long outputs
    run("translate", model, "--input", source, "--output", target, *long)
    command = ("evaluate", model, "--source", source, "--target", target, "--metrics", "exact")
    found = [json.loads(run(*command, *more, "--json").stdout) for more in (long, long[:2])]
    assert [each["exact"] for each in found] == [100, 0]


def test_outputs_are_kept_a_line_for_each_source(run: Run, model: Path, tmp_path: Path) -> None:
    source, one, two, out = (tmp_path / name for name in ("source", "one", "two", "out"))
    source.write_text("abba\ne\nabba\n")
    one.write_text("a\nb\nc\n")
    two.write_text("c\nb\na\n")
    files = ("--source", source, "--target", one, "--target", two, "--metrics", "exact,cer")
    done = run("evaluate", model, *files, "--output", out)
    assert out.read_text() == f"{spell('abba')}\n{spell('e')}\n{spell('abba')}\n"
    again = run("evaluate", "--hypotheses", out, *files)
    assert done.stdout.splitlines()[1] == again.stdout.splitlines()[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "out", "source", "two"]


def test_an_ensemble_is_not_its_first_model() -> None:
    pairs = [Pair("the cat", "le chat"), Pair("cat", "chat")]
    one, two = random_translator(1), random_translator(2)
    both = Translator(one.model, one.source, one.target, [two.model])
    losses = [[-s.score for s in t.score(*zip(*pairs, strict=True))] for t in (both, one)]
    assert losses[0] != pytest.approx(losses[1], rel=1e-3)
    symbols = 3 + 2
    assert evaluation.perplexity(both, pairs).of() == pytest.approx(
        math.exp(sum(losses[0]) / symbols), rel=1e-5
    )


def test_unknown_words_count_as_what_replaces_them() -> None:
    translator = random_translator(0)
    translator.model.decoder.output.weight.data[UNKNOWN] += 5
    pairs = [Pair("the cat", "le chat")]
    (plain,) = evaluation.answers(translator, pairs)
    assert "<unk>" in plain.output.pieces
    dictionary = {"the": "le", "cat": "chat"}
    (replaced,) = evaluation.answers(translator, pairs, replace_unknown=dictionary)
    assert "<unk>" not in replaced.output.pieces
    assert {"le", "chat"} & {*replaced.output.pieces}


def random_translator(seed: int) -> Translator:
    torch.manual_seed(seed)
    source, target = (
        Vocabulary.build(Side("words"), [line]) for line in ("the cat sat", "le chat")
    )
    model = build(Settings(6, 8), len(source), len(target)).eval()
    for parameter in model.parameters():
        torch.nn.init.uniform_(parameter, -1, 1)
    return Translator(model, source, target)


def test_a_translator(model: Path) -> None:
    translator = Translator.load(model)
    pairs = [Pair("abc", "x y z"), Pair("abc", spell("abc")), Pair("dd", "d d d")]
    sources, targets = zip(*pairs, strict=True)
    assert translator.evaluate(sources, targets) == {"wer": 50, "per": pytest.approx(50)}
    bleu = measure("bleu", evaluation.answers(translator, pairs)).of()
    names = ["exact", "bleu", "perplexity"]
    assert translator.evaluate(sources, targets, metrics=names, batch_size=1) == {
        "exact": 50,
        "bleu": pytest.approx(bleu),
        "perplexity": pytest.approx(evaluation.perplexity(translator, pairs).of()),
    }


def test_the_command(run: Run, model: Path, tmp_path: Path) -> None:
    every = "--metrics=all", "--by-length=3", "--bootstrap=50"
    table, parsed = run("evaluate", model, *every), run("evaluate", model, *every, "--json")
    result = json.loads(parsed.stdout)
    assert result["sources"] == 100
    assert result["exact"] == 100 - result["wer"]
    assert result["perplexity"] >= 1
    assert set(result["signatures"]) == {"bleu", "chrf", "ter"}
    assert sum(bucket["sources"] for bucket in result["lengths"]) == 100
    for name, (low, high) in result["intervals"].items():
        assert low <= result[name] <= high
    lines = table.stdout.splitlines()
    assert lines[1].startswith(f"WER {result['wer']:.2f} %   PER {result['per']:.2f} %   CER ")
    assert f"BLEU: {result['signatures']['bleu']}" in lines
    heads, *rows = (re.split("   +", line.strip()) for line in lines[-4:])
    assert heads[:4] == ["source length", "sources", "WER", "PER"]
    assert rows == [
        [f"{b['shortest']} to {b['longest']}", str(b["sources"]), *numbers(b)]
        for b in result["lengths"]
    ]


def numbers(scores: dict[str, float]) -> list[str]:
    percent = [f"{scores[name]:.2f} %" for name in ("wer", "per", "cer", "exact")]
    return percent + [f"{scores[name]:.2f}" for name in ("bleu", "chrf", "ter", "perplexity")]


def test_given_hypotheses(run: Run, tmp_path: Path) -> None:
    names = [tmp_path / name for name in ("out", "one", "two", "source")]
    for path, lines in zip(
        names, (["a b", "c"], ["a b", "d"], ["x", "c"], ["s", "t"]), strict=True
    ):
        path.write_text("".join(f"{line}\n" for line in lines))
    out, one, two, source = names
    done = run("evaluate", "--hypotheses", out, "--target", one, "--metrics", "exact,wer")
    assert done.stdout == f"{out}: 2 sources\nexact 50.00 %   WER 33.33 %\n"
    done = run(
        "evaluate",
        "--hypotheses",
        out,
        "--target",
        one,
        "--target",
        two,
        "--metrics=exact",
        "--json",
    )
    assert json.loads(done.stdout)["exact"] == 100
    done = run("evaluate", "--hypotheses", out, "--target", one)
    assert done.stdout.splitlines()[1].startswith("BLEU ")
    done = run("evaluate", "--hypotheses", out, "--target", one, "--lines=words")
    assert done.stdout.splitlines()[1] == "WER 50.00 %   PER 33.33 %"
    for path in (two, source):
        path.write_text("a\n" * 3)
        done = run(
            "evaluate", "--hypotheses", out, "--target", one, "--target", two, "--source", source
        )
        message = (
            f"{out}:3: there is no such line: {out} has 2 lines, {path} has 3; they should agree"
        )
        assert (done.returncode, done.stderr) == (1, f"luong: {message}\n")
        path.write_text("a\n" * 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a model, or --hypotheses and --target, or --alignments and --gold"),
        (["--hypotheses", "h"], "--hypotheses are measured against --target, without a model"),
        (["m", "--hypotheses", "h", "--target", "t"], "against --target, without a model"),
        (["--gold", "g"], "links are measured against --gold: give it, and a model or"),
        (["--alignments", "a"], "links are measured against --gold: give it, and a model or"),
        (["m", "--gold", "g"], "to align, a model needs --source FILE --target FILE"),
        (["MODEL", "--metrics", "blue"], "--metrics: expected some of wer,.*; got 'blue'"),
        (
            ["--hypotheses", "h", "--target", "t", "--output", "o"],
            "--output: there are no new outp",
        ),
        (
            ["m", "--source=s", "--target=t", "--gold=g", "--output=o"],
            "--output holds translations",
        ),
        (["m", "--output", "no/file"], "--output: no/file: there is no folder no"),
        (["--hypotheses=h", "--target=t", "--seed=-1"], "--seed: expected 0 to 4,294,967,295, got"),
        (["m", "--gold-base", "2"], "--gold-base: expected 0 to 1, got 2"),
        (["m", "--bootstrap", "0"], "--bootstrap: expected 1 to 100,000, got 0"),
        (["m", "--by-length", "0"], "--by-length: expected 1 to 1,000, got 0"),
        (["m", "--beam", "0"], "--beam: expected 1 to 1,000, got 0"),
        (["m", "--length-penalty=-1"], "--length-penalty: expected 0 to 20, got -1"),
        (["m", "--length-penalty", "nan"], "--length-penalty: expected 0 to 20, got nan"),
        (["--hypotheses=h", "--target=t", "--beam=5"], "--beam: not used with --hypotheses"),
        (["--hypotheses=h", "--target=t", "--bf16"], "--bf16: not used with --hypotheses"),
        (
            ["--gold=g", "--alignments=a", "--json", "--lines=words"],
            "--lines: not used with --gold",
        ),
        (["--gold=g", "--alignments=a", "--source=s"], "--source: not used with --alignments"),
        (["m", "--gold-base", "1"], "--gold-base: needs --gold"),
        (["--alignments=a", "--gold-base=1"], "--gold-base: needs --gold"),
        (["--hypotheses=h", "--target=t", "--metrics=perplexity"], "perplexity needs a model"),
        (["--hypotheses=h", "--target=t", "--tokenize=x"], "--tokenize: expected one of .* got 'x"),
        (["m", "--source=s"], "--source and --target go together"),
        (["m", "--data=d", "--source=s", "--target=t"], "give --data, or --source and --target"),
        (
            ["MODEL", "--source=s", "--target=t", "--output=MODEL/source.json"],
            r"--output: .*model/source\.json is read as well: give another file",
        ),
    ],
)
def test_wrong_usage(run: Run, model: Path, arguments: list[str], message: str) -> None:
    done = run("evaluate", *[a.replace("MODEL", str(model)) for a in arguments])
    assert done.returncode == 2
    assert re.search(message, done.stderr), done.stderr
    assert done.stderr.count("\n") == 1


def test_a_test_corpus_that_has_gone(run: Run, model: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(model, tmp_path / "run"))
    settings = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(re.sub(r"(?m)^  test: .*$", "  test: gone.tsv", settings))
    done = run("evaluate", copy)
    message = "luong: gone.tsv: there is no such file (data.test of the run): give --data\n"
    assert (done.returncode, done.stderr) == (1, message)
