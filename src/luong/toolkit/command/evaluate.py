"""luong evaluate"""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from luong.toolkit.choices import (
    BASE,
    BUCKETS,
    DEFAULT_METRICS,
    METRICS,
    SAMPLES,
    SCORES,
    SEED,
    Lines,
)
from luong.toolkit.command import options, terminal
from luong.toolkit.errors import ToolkitError, UsageError
from luong.toolkit.outputs import destination

if TYPE_CHECKING:
    from luong.toolkit.inference.measures import Answer, Bucket, Measurement
    from luong.toolkit.text.lines import Pair

_SEARCH = ("beam", "length_penalty", "no_repeat_ngram")
_OUTPUTS = (*_SEARCH, "replace_unknown", "dictionary")  # options for new outputs
_COMPUTING = ("ensemble", "batch_size", "device", "bf16")
_TEXT = ("data", "metrics", "lines", "tokenize", "lowercase", "by_length", "bootstrap", "seed")
_UNUSED = {  # options that mean nothing beside another one
    "gold": ("hypotheses", *_TEXT, *_OUTPUTS),
    "alignments": ("source", "target", *_COMPUTING),
    "hypotheses": (*_OUTPUTS, *_COMPUTING),
}


def run(argv: Sequence[str]) -> None:
    """luong evaluate MODEL | --hypotheses FILE --target FILE | --alignments FILE --gold FILE"""
    parser = _parser()
    arguments = parser.parse_args(list(argv))
    _check(parser, arguments)
    if arguments.gold:
        _evaluate_links(arguments)
    else:
        _evaluate_outputs(arguments)


def _parser() -> terminal.Parser:
    parser = terminal.Parser(
        "evaluate",
        "Measure the outputs of a model, one for each source, or lines that came from elsewhere "
        "(--hypotheses). Lines with the same source are references of one output; the closest "
        "counts. With --gold, measure the alignment error rate of a model, or of --alignments.",
    )
    options.add_model(parser, nargs="?")
    _add_files(parser)
    _add_measures(parser)
    options.add_ensemble(parser)
    options.add_computing(parser)
    options.add_unknown(parser)
    options.add_settings(parser.add_argument_group("search").add_argument, *_SEARCH)
    _add_alignments(parser)
    return parser


def _add_files(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--data", metavar="CORPUS", help="corpus, as in a recipe; default: the recipe's test corpus"
    )
    add("--source", type=Path, metavar="FILE", help="file of sources, one a line")
    add(
        "--target",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="file of references, one a line; may be given more than once",
    )
    add(
        "--hypotheses",
        type=Path,
        metavar="FILE",
        help="file of outputs to measure, one a line; no model is needed",
    )
    add(
        "--output",
        type=Path,
        metavar="FILE",
        help="file to write the outputs to, a line for each source, in order",
    )


def _add_measures(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--metrics",
        type=_metrics,
        help=f"measures, with commas between: {','.join(METRICS)}; or all",
    )
    add(
        "--lines",
        choices=tuple(DEFAULT_METRICS),
        help="whether a line is one word (WER counts wrong lines) or a sentence (WER counts wrong "
        "words)",
    )
    add("--tokenize", metavar="NAME", help="sacreBLEU's tokenizer, for BLEU; default: 13a")
    add("--lowercase", action="store_true", help="ignore case in BLEU, chrF and TER")
    add("--json", action="store_true", help="print JSON")
    options.add_number(add, "--by-length", BUCKETS, "measure N ranges of source length too")
    options.add_number(
        add, "--bootstrap", SAMPLES, "add 95 %% confidence intervals, from N samples of the sources"
    )
    options.add_number(add, "--seed", SEED, "seed of the bootstrap", default=1)


def _add_alignments(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("alignments").add_argument
    add("--gold", type=Path, metavar="FILE", help="file of gold links: i-j is sure, ipj possible")
    options.add_number(add, "--gold-base", BASE, "position of the first word in --gold", default=0)
    add(
        "--alignments",
        type=Path,
        metavar="FILE",
        help="file of links i-j to measure, as luong align writes it",
    )


def _metrics(text: str) -> list[str]:
    """Return the names that --metrics lists."""
    names = list(METRICS) if text == "all" else text.split(",")
    for name in names:
        if name not in METRICS:
            raise ArgumentTypeError(f"expected some of {','.join(METRICS)}, or all; got {name!r}")
    return names


def _check(parser: ArgumentParser, arguments: Namespace) -> None:
    for name, unused in _UNUSED.items():
        if getattr(arguments, name):
            options.refuse(parser, arguments, unused, f"not used with --{name}")
    if not arguments.gold:
        options.refuse(parser, arguments, ["gold_base"], "needs --gold")
    if arguments.gold or arguments.alignments:
        _check_links(arguments)
    elif arguments.hypotheses:
        _check_hypotheses(arguments)
    else:
        _check_model(arguments)
    if arguments.tokenize:
        from luong.toolkit.inference.measures import check_tokenizer

        check_tokenizer(arguments.tokenize)


def _check_links(arguments: Namespace) -> None:
    if not arguments.gold or bool(arguments.alignments) == bool(arguments.model):
        raise UsageError("links are measured against --gold: give it, and a model or --alignments")
    if arguments.model and (not arguments.source or len(arguments.target) != 1):
        raise UsageError("to align, a model needs --source FILE --target FILE")
    if arguments.ensemble:
        raise UsageError("--ensemble: alignments are those of one model")
    if arguments.output:
        raise UsageError("--output holds translations; luong align writes links")


def _check_hypotheses(arguments: Namespace) -> None:
    if arguments.model or arguments.data or not arguments.target:
        raise UsageError("--hypotheses are measured against --target, without a model")
    if arguments.output:
        raise UsageError("--output: there are no new outputs to write, only --hypotheses")
    if "perplexity" in (arguments.metrics or ()):
        raise UsageError("--metrics: perplexity needs a model")


def _check_model(arguments: Namespace) -> None:
    if not arguments.model:
        raise UsageError("give a model, or --hypotheses and --target, or --alignments and --gold")
    if bool(arguments.source) != bool(arguments.target):
        raise UsageError("--source and --target go together")
    if arguments.source and arguments.data:
        raise UsageError("give --data, or --source and --target")
    inputs = (arguments.source, *arguments.target, arguments.dictionary)
    options.check_output(arguments.output, *inputs, arguments.model, *arguments.ensemble)


def _evaluate_links(arguments: Namespace) -> None:
    from luong.toolkit.inference import links
    from luong.toolkit.text.lines import lines, pairs, require_even

    if arguments.alignments:
        name, file = str(arguments.alignments), enumerate(lines(arguments.alignments), 1)
        found = [links.read(line, f"{name}:{number}") for number, line in file]
    else:
        from luong.toolkit.inference import alignment

        name, found_pairs = str(arguments.source), pairs(arguments.source, arguments.target[0])
        found = [*alignment.align(options.load(arguments), found_pairs)]
    gold = [
        links.read_gold(line, f"{arguments.gold}:{number}", arguments.gold_base)
        for number, line in enumerate(lines(arguments.gold), 1)
    ]
    require_even({name: len(found), str(arguments.gold): len(gold)})
    result = links.agreement(zip(found, gold, strict=True))
    if arguments.json:
        print(json.dumps({"data": name, "gold": str(arguments.gold), **result._asdict()}))
    else:
        print(f"{name}: {result.pairs:,} pairs")
        rates = f"precision {result.precision:.2f} %   recall {result.recall:.2f} %"
        print(f"AER {result.aer:.2f} %   {rates}")


class _Results(NamedTuple):
    """The measured outputs of a corpus."""

    data: str  # the name of the corpus
    answers: list[Answer]
    measurements: list[Measurement]
    buckets: Sequence[Bucket] = ()
    intervals: Mapping[str, tuple[float, float]] = {}


def _evaluate_outputs(arguments: Namespace) -> None:
    results = (_of_hypotheses if arguments.hypotheses else _of_model)(arguments)
    if not arguments.tokenize and any(m.name == "bleu" for m in results.measurements):
        _remark(results.answers)
    if arguments.by_length:
        from luong.toolkit.inference.measures import by_length

        buckets = [*by_length(results.answers, arguments.by_length)]
        results = results._replace(buckets=buckets)
    if arguments.bootstrap:
        sampled = arguments.bootstrap, arguments.seed
        intervals = {m.name: m.interval(*sampled) for m in results.measurements}
        results = results._replace(intervals=intervals)
    (_print_json if arguments.json else _print)(results)


def _remark(found: Sequence[Answer]) -> None:
    """Say where BLEU counts sentences as words, since there are no spaces between words."""
    from luong.toolkit.inference.measures import fitting_tokenizer

    better = fitting_tokenizer(text.line for answer in found for text in answer.references)
    if better:
        terminal.say(
            "BLEU means little here: its tokenizer, 13a, splits at spaces, which these references "
            f"do not have between words; --tokenize {better} fits them"
        )


def _of_hypotheses(arguments: Namespace) -> _Results:
    from luong.toolkit.inference.measures import given, measure
    from luong.toolkit.text.lines import lines, require_even

    name = str(arguments.hypotheses)
    files = {str(path): list(lines(path)) for path in arguments.target}
    outputs = list(lines(arguments.hypotheses))
    sources = list(lines(arguments.source)) if arguments.source else None
    counts = {name: len(outputs)} | {path: len(file) for path, file in files.items()}
    require_even(counts)
    if sources is not None:
        require_even({name: len(outputs), str(arguments.source): len(sources)})
    if not outputs:
        raise ToolkitError(f"{name}: no lines in it")
    found = given(outputs, [*zip(*files.values(), strict=True)], sources)
    kind: Lines = arguments.lines or "sentences"
    measurements = [
        measure(
            metric,
            found,
            sentences=kind == "sentences",
            tokenize=arguments.tokenize,
            lowercase=arguments.lowercase,
        )
        for metric in arguments.metrics or DEFAULT_METRICS[kind]
    ]
    return _Results(name, found, measurements)


def _of_model(arguments: Namespace) -> _Results:
    decoding = options.decoding(arguments, *_SEARCH)
    replace_unknown = options.dictionary(arguments)
    device = options.find_device(arguments)
    data, pairs, count = _pairs(arguments)

    from luong.toolkit.inference import evaluation

    translator = options.load_on(device, arguments, arguments.model, *arguments.ensemble)
    with _output(arguments.output) as file:
        found = evaluation.evaluate(
            translator,
            pairs,
            decoding,
            arguments.metrics,
            lines=arguments.lines,
            tokenize=arguments.tokenize,
            lowercase=arguments.lowercase,
            replace_unknown=replace_unknown,
            batch_size=arguments.batch_size,
        )
        if file:
            outputs = {answer.source.line: answer.output.line for answer in found.answers}
            for pair in pairs[:count]:
                print(outputs[pair.source], file=file)
    return _Results(data, found.answers, found.measurements)


def _output(path: Path | None) -> AbstractContextManager[TextIO | None]:
    return destination(path) if path else nullcontext()


def _pairs(arguments: Namespace) -> tuple[str, list[Pair], int]:
    """Return the name of the corpus, its pairs, and how many of the first hold all sources in
    order.
    """
    from luong.toolkit.corpora import parse
    from luong.toolkit.text import corpus, lines

    if arguments.source:
        files = [lines.read_pairs(arguments.source, target) for target in arguments.target]
        name = ", ".join(map(str, [arguments.source, *arguments.target]))
        return name, [pair for file in files for pair in file], len(files[0])
    data = arguments.data
    if data is None:
        from luong.toolkit.config import Config

        data = Config.of_run(arguments.model).data.test
    if data is None:
        raise UsageError("the recipe names no test corpus: give --data")
    found = parse(data)
    for path in corpus.files(found):
        if not arguments.data and not path.exists():
            raise ToolkitError(f"{path}: there is no such file (data.test of the run): give --data")
    options.check_output(arguments.output, *corpus.files(found))
    pairs = list(corpus.pairs(found))
    return data, pairs, len(pairs)


def _print(results: _Results) -> None:
    measurements = results.measurements
    print(f"{results.data}: {len(results.answers):,} sources")
    print("   ".join(f"{METRICS[m.name]} {_number(m, m.of())}" for m in measurements))
    for m in measurements:
        if m.name in results.intervals:
            low, high = (_number(m, value) for value in results.intervals[m.name])
            print(f"{METRICS[m.name]}: 95 % confidence from {low} to {high}")
    for m in measurements:
        if m.signature:
            print(f"{METRICS[m.name]}: {m.signature}")
    if results.buckets:
        _print_table(measurements, results.buckets)


def _print_table(measurements: Sequence[Measurement], buckets: Sequence[Bucket]) -> None:
    rows = [["source length", "sources", *(METRICS[m.name] for m in measurements)]]
    for b in buckets:
        scores = [_number(m, m.of(b.rows)) for m in measurements]
        rows.append([f"{b.shortest} to {b.longest}", f"{b.rows.sum():,}", *scores])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("   ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def _number(measurement: Measurement, value: float) -> str:
    return f"{value:.2f}" if measurement.name in SCORES else f"{value:.2f} %"


def _print_json(results: _Results) -> None:
    tree: dict[str, Any] = {"data": results.data, "sources": len(results.answers)}
    tree |= {m.name: m.of() for m in results.measurements}
    tree["signatures"] = {m.name: m.signature for m in results.measurements if m.signature}
    if results.intervals:
        tree["intervals"] = results.intervals
    if results.buckets:
        tree["lengths"] = [
            {"shortest": b.shortest, "longest": b.longest, "sources": int(b.rows.sum())}
            | {m.name: m.of(b.rows) for m in results.measurements}
            for b in results.buckets
        ]
    print(json.dumps(tree))
