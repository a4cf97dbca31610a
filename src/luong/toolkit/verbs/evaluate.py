"""luong evaluate"""

from __future__ import annotations

import json
import math
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from luong.toolkit import terminal
from luong.toolkit.errors import ToolkitError, UsageError
from luong.toolkit.verbs.translate import add_model, add_unknown, check_positive, dictionary, load

if TYPE_CHECKING:
    from luong.toolkit.corpus import Pair
    from luong.toolkit.measures import Answer, Bucket, Measurement

# with a per cent sign, or without
NAMES = {"wer": "WER", "per": "PER", "cer": "CER", "exact": "exact"}
PLAIN = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER", "perplexity": "perplexity"}
DEFAULTS = {"words": "wer,per", "sentences": "bleu,chrf,ter"}


def run(argv: Sequence[str]) -> None:
    """luong evaluate MODEL | --hypotheses FILE --target FILE | --alignments FILE --gold FILE"""
    arguments = _parser().parse_args(list(argv))
    arguments.target = [Path(name) for name in arguments.target or ()]
    check_positive(arguments, "beam", "by_length", "bootstrap", "batch_size")
    penalty = arguments.length_penalty
    if penalty is not None and not 0 <= penalty < math.inf:
        raise UsageError(f"--length-penalty: expected 0 or more, finite, got {penalty:g}")
    if arguments.gold or arguments.alignments:
        _alignments(arguments)
    else:
        _outputs(arguments)


def _parser() -> ArgumentParser:
    parser = terminal.Parser(
        "evaluate",
        "Measures of a model's output, one hypothesis a source, or of lines that came from "
        "elsewhere (--hypotheses). Lines with the same source are references of one: the closest "
        "counts. With --gold, the alignment error rate of a model, or of --alignments.",
    )
    add_model(parser, nargs="?")
    add = parser.add_argument
    add("--data", help="a corpus as in a recipe; the default is the recipe's test")
    add("--source", type=Path, help="a file of sources, one a line")
    add(
        "--target", action="append", default=[], help="a file of targets; again for more references"
    )
    add("--hypotheses", type=Path, help="a file of outputs to measure; no model is needed")
    add("--metrics", help=f"some of {','.join(NAMES | PLAIN)}; or all")
    add("--lines", choices=("words", "sentences"), help="what a source is, and so what WER means")
    add("--tokenize", help="sacreBLEU's tokenizer, for BLEU; the default is 13a")
    add("--lowercase", action="store_true", help="BLEU, chrF and TER without regard to case")
    add("--beam", type=int, help="beam width; the default is that of luong translate")
    add("--length-penalty", type=float, help="as that of luong translate")
    add_unknown(parser)
    add("--by-length", type=int, metavar="N", help="break down by source length, in N ranges")
    add("--bootstrap", type=int, metavar="N", help="95 %% confidence intervals from N samples")
    add("--seed", type=int, default=1, help="of the bootstrap")
    add("--gold", type=Path, help="a file of gold links: i-j is sure, ipj possible")
    add("--gold-base", type=int, choices=(0, 1), default=0, help="where its positions start")
    add("--alignments", type=Path, help="a file of links i-j, as luong align writes it")
    add("--json", action="store_true", help="print JSON")
    return parser


def _alignments(arguments: Namespace) -> None:
    if not arguments.gold or bool(arguments.alignments) == bool(arguments.model):
        raise UsageError("links are measured against --gold: give it, and a model or --alignments")
    if arguments.model and (not arguments.source or len(arguments.target) != 1):
        raise UsageError("to align, a model needs --source FILE --target FILE")
    if arguments.ensemble:
        raise UsageError("--ensemble: alignments are those of one model")

    from luong.toolkit import links
    from luong.toolkit.corpus import lines

    if arguments.alignments:
        name, file = str(arguments.alignments), enumerate(lines(arguments.alignments), 1)
        found = [links.read(line, f"{name}:{number}") for number, line in file]
    else:
        from luong.toolkit import aligning

        name, pairs = str(arguments.source), aligning.read(arguments.source, arguments.target[0])
        found = [*aligning.align(load(arguments), pairs)]
    gold = [
        links.read_gold(line, f"{arguments.gold}:{number}", arguments.gold_base)
        for number, line in enumerate(lines(arguments.gold), 1)
    ]
    _check_counts({name: len(found), str(arguments.gold): len(gold)})
    result = links.agreement(zip(found, gold, strict=True))
    if arguments.json:
        print(json.dumps({"data": name, "gold": str(arguments.gold), **result._asdict()}))
    else:
        print(f"{name}: {result.pairs:,} pairs")
        rates = f"precision {result.precision:.2f} %   recall {result.recall:.2f} %"
        print(f"AER {result.aer:.2f} %   {rates}")


def _outputs(arguments: Namespace) -> None:
    name, found, measurements = (_given if arguments.hypotheses else _translated)(arguments)
    buckets: list[Bucket] = []
    if arguments.by_length:
        from luong.toolkit.measures import by_length

        buckets = list(by_length(found, arguments.by_length))
    intervals = {
        m.name: m.interval(arguments.bootstrap, arguments.seed)
        for m in measurements
        if arguments.bootstrap
    }
    show = _print_json if arguments.json else _print
    show(name, len(found), measurements, buckets, intervals)


def _given(arguments: Namespace) -> tuple[str, list[Answer], list[Measurement]]:
    if arguments.model or arguments.data or not arguments.target:
        raise UsageError("--hypotheses are measured against --target, without a model")

    from luong.toolkit.corpus import lines
    from luong.toolkit.measures import given

    files = {str(path): list(lines(path)) for path in arguments.target}
    outputs = list(lines(arguments.hypotheses))
    sources = list(lines(arguments.source)) if arguments.source else None
    counts = {name: len(file) for name, file in files.items()}
    _check_counts({str(arguments.hypotheses): len(outputs)} | counts)
    if sources is not None:
        _check_counts(
            {str(arguments.hypotheses): len(outputs), str(arguments.source): len(sources)}
        )
    if not outputs:
        raise ToolkitError(f"{arguments.hypotheses}: no lines in it")
    found = given(outputs, [*zip(*files.values(), strict=True)], sources)
    kind = arguments.lines or "sentences"
    names = _chosen(arguments.metrics or DEFAULTS[kind], [*NAMES, *PLAIN][:-1])
    return str(arguments.hypotheses), found, _measured(arguments, names, found, kind)


def _translated(arguments: Namespace) -> tuple[str, list[Answer], list[Measurement]]:
    if not arguments.model:
        raise UsageError("give a model, or --hypotheses and --target, or --alignments and --gold")
    if bool(arguments.source) != bool(arguments.target):
        raise UsageError("--source and --target go together")
    if arguments.source and arguments.data:
        raise UsageError("give --data, or --source and --target")

    from luong.toolkit import evaluating

    options = {"replace_unknown": dictionary(arguments), "batch_size": arguments.batch_size}
    search = {name: getattr(arguments, name) for name in ("beam", "length_penalty")}
    options |= {name: value for name, value in search.items() if value is not None}
    translator = load(arguments)
    kind = arguments.lines or ("sentences" if evaluating.of_sentences(translator) else "words")
    names = _chosen(arguments.metrics or DEFAULTS[kind], [*NAMES, *PLAIN])
    data, pairs = _pairs(arguments)
    found = evaluating.answers(translator, pairs, **options)
    measurements = _measured(arguments, [n for n in names if n != "perplexity"], found, kind)
    if "perplexity" in names:
        measurements.append(evaluating.perplexity(translator, pairs, arguments.batch_size))
    return data, found, measurements


def _pairs(arguments: Namespace) -> tuple[str, list[Pair]]:
    """The name of the corpus, and the corpus."""
    from luong.toolkit import corpus
    from luong.toolkit.config import Config

    if arguments.source:
        files = [corpus.read_parallel(arguments.source, target) for target in arguments.target]
        name = ", ".join(map(str, [arguments.source, *arguments.target]))
        return name, [pair for file in files for pair in file]
    data: str | None = arguments.data or Config.of_run(arguments.model).data.test
    if data is None:
        raise UsageError("the recipe names no test corpus: give --data")
    return data, list(corpus.read(data))


def _measured(
    arguments: Namespace, names: Sequence[str], found: Sequence[Answer], kind: str
) -> list[Measurement]:
    from luong.toolkit.measures import measure

    options = {"tokenize": arguments.tokenize, "lowercase": arguments.lowercase}
    return [measure(name, found, sentences=kind == "sentences", **options) for name in names]


def _chosen(text: str, known: Sequence[str]) -> list[str]:
    names = list(known) if text == "all" else text.split(",")
    for name in names:
        if name not in known:
            raise UsageError(f"--metrics: expected some of {','.join(known)}; got {name!r}")
    return names


def _check_counts(counts: dict[str, int]) -> None:
    """Refuse files of different lengths, naming the first two."""
    (first, count), *others = counts.items()
    for other, n in others:
        if n != count:
            raise ToolkitError(f"{first} has {count} lines, {other} has {n}: they should agree")


def _print(
    name: str,
    sources: int,
    measurements: Sequence[Measurement],
    buckets: Sequence[Bucket],
    intervals: dict[str, tuple[float, float]],
) -> None:
    print(f"{name}: {sources:,} sources")
    print("   ".join(f"{(NAMES | PLAIN)[m.name]} {_number(m, m.of())}" for m in measurements))
    for m in measurements:
        if m.name in intervals:
            low, high = (_number(m, value) for value in intervals[m.name])
            print(f"{(NAMES | PLAIN)[m.name]}: 95 % confidence from {low} to {high}")
    for m in measurements:
        if m.signature:
            print(f"{PLAIN[m.name]}: {m.signature}")
    if buckets:
        _print_table(measurements, buckets)


def _print_table(measurements: Sequence[Measurement], buckets: Sequence[Bucket]) -> None:
    rows = [["source length", "sources", *((NAMES | PLAIN)[m.name] for m in measurements)]]
    for b in buckets:
        scores = [_number(m, m.of(b.rows)) for m in measurements]
        rows.append([f"{b.shortest} to {b.longest}", f"{b.rows.sum():,}", *scores])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("   ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def _number(measurement: Measurement, value: float) -> str:
    return f"{value:.2f}" if measurement.name in PLAIN else f"{value:.2f} %"


def _print_json(
    name: str,
    sources: int,
    measurements: Sequence[Measurement],
    buckets: Sequence[Bucket],
    intervals: dict[str, tuple[float, float]],
) -> None:
    result: dict[str, Any] = {"data": name, "sources": sources}
    result |= {m.name: m.of() for m in measurements}
    result["signatures"] = {m.name: m.signature for m in measurements if m.signature}
    if intervals:
        result["intervals"] = intervals
    if buckets:
        result["lengths"] = [
            {"shortest": b.shortest, "longest": b.longest, "sources": int(b.rows.sum())}
            | {m.name: m.of(b.rows) for m in measurements}
            for b in buckets
        ]
    print(json.dumps(result))
