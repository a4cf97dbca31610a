"""The tables of docs/results.md, as commands of luong."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import sources
from lab import Lab

Flags = tuple[object, ...]
# the tutorial's sizes and ten epochs
SMALLER: Flags = (
    *("--model.embedding_size", 100, "--model.hidden_size", 100, "--model.dropout", 0),
    *("--training.label_smoothing", 0, "--training.average", 0, "--training.patience", "null"),
    *("--training.learning_rate", 5e-3),
)
PARTS = ("train", "dev", "test")
DROPOUT = ("--model.dropout", 0.2)
SMALL = "luong2015-small.yaml"
LANGUAGES = (
    *("arm_e", "bul", "dut", "fre", "geo", "hbs_latn", "hun", "jpn_hira", "kor", "vie_hanoi"),
    "eng_us",
)


def cmudict(lab: Lab) -> None:
    """Global, local-m and local-p with the general score, and the three together."""
    sources.cmudict(lab.files("cmudict"), lab.out / "data")
    shapes = windows(4)
    data = corpora(*(f"data/{part}.tsv" for part in PARTS))
    evaluate = ("--beam", 5, "--metrics", "wer,per", "--json")
    for name in lab.chosen(shapes):
        seed = [*shapes].index(name) + 1
        lab.train(name, "g2p-en-best", *data, *shapes[name], "--training.seed", seed)
        lab.result(f"{name}.json", "evaluate", name, *evaluate)
    if not lab.only:
        first, *others = shapes
        more = [flag for other in others for flag in ("--ensemble", other)]
        lab.result("ensemble.json", "evaluate", first, *more, *evaluate)


def sigmorphon2021(lab: Lab) -> None:
    """Ten languages of 8,000 words, and English of 33,344."""
    files = lab.files("sigmorphon2021")
    copy(files, lab.out / "data")
    for language in lab.chosen(LANGUAGES):
        data = corpora(*(f"data/{language}_{part}.tsv" for part in PARTS))
        lab.train(language, "g2p-sigmorphon", *data)
        lab.result(f"{language}.json", "evaluate", language, "--beam", 5, "--json")


def greek_english(lab: Lab) -> None:
    """Alignment error rates of both directions and of both joined."""
    sources.greek_english(lab.files("greek-english"), lab.out / "data")
    shapes = windows(10)
    sides = {"grc-en": ("data/grc.txt", "data/en.txt"), "en-grc": ("data/en.txt", "data/grc.txt")}
    for name in lab.chosen(shapes):
        for direction in sides:
            train, dev = (f"data/{direction}{part}.tsv" for part in ("", ".dev"))
            data = ("--data.train", train, "--data.dev", dev)
            lab.train(f"{name}-{direction}", "align-small", *data, *shapes[name])
        forward, backward = (f"{name}-{direction}" for direction in sides)
        align = ("align", forward, *side_flags(*sides["grc-en"]))
        found: dict[str, Flags] = {"grc-en": align}
        for join in ("grow-diag-final-and", "product"):
            found[join] = (*align, "--reverse", backward, "--join", join)
        for kind, arguments in found.items():
            for step in ("predicted", "posterior"):
                result = f"{name}-{kind}-{step}"
                links = lab.result(f"{result}.links", *arguments, "--step", step)
                evaluate = ("evaluate", "--alignments", links.name, "--gold", "data/gold.txt")
                lab.result(f"{result}.json", *evaluate, "--json")


def nmt_tips(lab: Lab) -> None:
    """Dot score and input feeding, at the tutorial's size and at our recipe's; BLEU of the test.

    Unknown words stay, or become the source word attended most, or what the training corpus,
    aligned by the model itself, has for that word.
    """
    copy(lab.files("nmt-tips"), lab.out / "data")
    shapes: dict[str, Flags] = {"dot": SMALLER, "best": ()}
    for name in lab.chosen(shapes):
        lab.train(name, "translate-small", *parallel("ja", "en"), *shapes[name])
        translations(lab, name, "ja", "en")
    if not lab.only:
        bleu(lab, "ensemble", "best", "--ensemble", "dot")


def ablation(lab: Lab) -> None:
    """The paper's Tables 1 and 4 in small, on the CMU dictionary."""
    sources.cmudict(lab.files("cmudict"), lab.out / "data")
    copy({SMALL: Path(__file__).parent / SMALL}, lab.out)
    shapes: dict[str, Flags] = {
        "base": ("--model.score", "none", "--model.reverse_source", "false"),
        "reverse": ("--model.score", "none"),
        "dropout": ("--model.score", "none", *DROPOUT),
        "attention": ("--model.score", "location", *DROPOUT),
    }
    for score in ("location", "dot", "general", "concat"):
        for name, shape in windows(4).items():
            flags = ("--model.score", score, *shape, "--model.input_feeding", "true", *DROPOUT)
            shapes[f"{name}-{score}"] = flags
    data = corpora(*(f"data/{part}.tsv" for part in PARTS))
    for name in lab.chosen(shapes):
        lab.train(name, SMALL, *data, *shapes[name])
        metrics = ("--metrics", "perplexity,wer,per,bleu", "--tokenize", "none")
        lab.result(f"{name}.json", "evaluate", name, "--beam", 5, *metrics, "--json")


def translations(lab: Lab, name: str, source: str, target: str) -> None:
    """BLEU of the test corpus with unknown words as they are, and replaced in two ways."""
    one, other = (f"data/train.{side}" for side in (source, target))
    links = lab.result(f"{name}.links", "align", name, *side_flags(one, other))
    words = lab.out / f"{name}.dictionary.tsv"
    dictionary(links, lab.out / one, lab.out / other, words)
    bleu(lab, name, name)
    bleu(lab, name, name, "--replace-unknown", kind="-copied")
    looked_up = ("--replace-unknown", "--dictionary", words.name)
    bleu(lab, name, name, *looked_up, kind="-looked-up")


def bleu(lab: Lab, result: str, *arguments: object, kind: str = "") -> None:
    """BLEU of the test corpus, greedy and with a beam."""
    for beam in (1, 10):
        evaluate = ("evaluate", *arguments, "--beam", beam, "--tokenize", "none")
        metrics = ("--metrics", "bleu,perplexity", "--json")
        lab.result(f"{result}-beam{beam}{kind}.json", *evaluate, *metrics)


def dictionary(links: Path, source: Path, target: Path, out: Path) -> None:
    """For each source word the target word that it is linked with most often."""
    counts = dict[str, Counter[str]]()
    texts = (path.read_text(encoding="utf-8").split("\n") for path in (source, target, links))
    for one, other, linked in zip(*texts, strict=True):
        words = one.split(), other.split()
        for link in linked.split():
            i, j = map(int, link.split("-"))
            counts.setdefault(words[0][i], Counter())[words[1][j]] += 1
    lines = (f"{word}\t{found.most_common(1)[0][0]}\n" for word, found in sorted(counts.items()))
    out.write_text("".join(lines), encoding="utf-8")


def parallel(source: str, target: str) -> Flags:
    """The flags that name the parts of a parallel text in data/."""
    return corpora(*(f"data/{part}.{source},data/{part}.{target}" for part in PARTS))


def windows(half_width: int) -> dict[str, Flags]:
    """The flags of each window."""
    widths = {"global": "null", "local_m": half_width, "local_p": half_width}
    return {
        window.replace("_", "-"): ("--model.window", window, "--model.half_width", width)
        for window, width in widths.items()
    }


def corpora(train: str, dev: str, test: str) -> Flags:
    """The flags that name the corpora."""
    return ("--data.train", train, "--data.dev", dev, "--data.test", test)


def side_flags(source: str, target: str) -> Flags:
    """The flags that name the sides of a parallel text."""
    return ("--source", source, "--target", target)


def copy(files: dict[str, Path], folder: Path) -> None:
    """Copy files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in files.items():
        shutil.copyfile(path, folder / name)


EXPERIMENTS: dict[str, Callable[[Lab], None]] = {
    "cmudict": cmudict,
    "sigmorphon2021": sigmorphon2021,
    "greek-english": greek_english,
    "nmt-tips": nmt_tips,
    "ablation": ablation,
}
