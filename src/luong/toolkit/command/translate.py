"""luong translate"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from luong.toolkit.choices import SOURCE_LENGTH
from luong.toolkit.command import options, streams, terminal
from luong.toolkit.command.streams import Line
from luong.toolkit.errors import UsageError
from luong.toolkit.outputs import destination
from luong.toolkit.torchrun import Process

if TYPE_CHECKING:
    from luong.toolkit.inference.translation import Translation

_SEARCH = (
    "beam",
    "n_best",
    "length_penalty",
    "no_repeat_ngram",
    "min_ratio",
    "min_extra",
    "max_ratio",
    "max_extra",
)


def run(argv: Sequence[str]) -> None:
    """luong translate MODEL [TEXT ...] [< lines]"""
    parser = _parser()
    arguments = parser.parse(argv)
    _check(arguments)
    process = Process.here()
    if process.size > 1 and not (arguments.input and arguments.output):
        raise UsageError("several processes share a file: give --input and --output")
    settings = {
        "decoding": options.decoding(arguments, *_SEARCH, sampling=options.sampling(arguments)),
        "prefix": terminal.checked(arguments.prefix),
        "replace_unknown": options.dictionary(arguments),
        "max_source": arguments.max_source_length,
        "batch_size": arguments.batch_size,
    }
    translator = options.load(arguments)
    layout = FORMATS[arguments.format]
    with destination(arguments.output, process) as file:
        for chunk in _incoming(arguments, process):
            names, lines = zip(*chunk, strict=True)
            numbers = [_number(name, i) for i, name in enumerate(names, 1)]
            found = translator.search(lines, first=numbers[0], **settings)
            for name, number, line, outputs in zip(names, numbers, lines, found, strict=True):
                terminal.report(outputs[0], name)
                for row in layout(number, line, outputs, arguments.alignments):
                    print(row, file=file)
            file.flush()


def _parser() -> terminal.Parser:
    parser = terminal.Parser(
        "translate",
        "Translate lines: one output for each line, in order, and a blank line for a blank one.",
    )
    options.add_model(parser)
    parser.add_argument("text", nargs="*", help="lines to translate; without any, stdin is read")
    add = parser.add_argument
    add(
        "--input",
        type=Path,
        metavar="FILE",
        help="file of lines to translate; processes that torchrun starts share it",
    )
    add(
        "--output",
        type=Path,
        metavar="FILE",
        help="file to write, which appears when it is complete; default: stdout",
    )
    add(
        "--format",
        choices=tuple(FORMATS),
        default="text",
        help="text: the best output; tsv: line, rank, score[, alignment], output, dropped, unseen "
        "(a JSON list); jsonl: one JSON object for each line, with all outputs",
    )
    add(
        "--alignments",
        choices=("pharaoh", "matrix"),
        help="add alignments; pharaoh: links source-target, positions from 0, as in 0-0 1-2; "
        "matrix: all attention weights (jsonl only)",
    )
    options.add_unknown(parser)
    options.add_number(
        add,
        "--max-source-length",
        SOURCE_LENGTH,
        "maximum number of symbols read of a line; the rest is dropped, and stderr says so",
        default=1000,
    )
    options.add_ensemble(parser)
    options.add_computing(parser)
    _add_search(parser)
    return parser


def _add_search(parser: ArgumentParser) -> None:
    options.add_settings(parser.add_argument_group("search").add_argument, *_SEARCH)
    add = parser.add_argument_group("sampling").add_argument
    add(
        "--sample",
        action="store_true",
        help="draw outputs at random instead of searching for the most probable ones",
    )
    options.add_settings(add, *options.SAMPLING)
    parser.add_argument(
        "--prefix", default="", metavar="TEXT", help="text that every output begins with"
    )


def _check(arguments: Namespace) -> None:
    if arguments.text and arguments.input:
        raise UsageError("give --input, or what to translate")
    if arguments.format == "text" and (arguments.n_best > 1 or arguments.alignments):
        raise UsageError("--n-best and --alignments need --format tsv or --format jsonl")
    if arguments.format == "tsv" and arguments.alignments == "matrix":
        raise UsageError("--alignments matrix needs --format jsonl")
    inputs = (arguments.input, arguments.dictionary, arguments.model, *arguments.ensemble)
    options.check_output(arguments.output, *inputs)


def _incoming(arguments: Namespace, process: Process) -> Iterable[list[Line]]:
    if arguments.text:
        return [[(repr(text), terminal.checked(text)) for text in arguments.text]]
    if arguments.input:
        return streams.share(arguments.input, process)
    if sys.stdin.isatty():
        return streams.typed()
    return streams.piped(cast(BufferedReader, sys.stdin.buffer), "stdin")


def _number(name: str, place: int) -> int:
    """Return the number of a line, which is part of its name; words of the command line are
    counted.
    """
    number = name.rpartition(":")[2]
    return int(number) if number.isdecimal() else place


def _text(_: int, __: str, outputs: list[Translation], ___: str | None) -> Iterator[str]:
    yield outputs[0].text


def _tsv(number: int, _: str, outputs: list[Translation], alignments: str | None) -> Iterator[str]:
    for rank, output in enumerate(outputs, 1):
        links = [_pharaoh(output)] if alignments else []
        fields = [f"{output.score:.6f}", *links, output.text, f"{output.dropped}"]
        unseen = json.dumps(output.unseen, ensure_ascii=False)  # TAB would be "\\t"
        yield "\t".join([str(number), str(rank), *fields, unseen])


def _jsonl(
    number: int, line: str, outputs: list[Translation], alignments: str | None
) -> Iterator[str]:
    def described(output: Translation) -> dict[str, Any]:
        fields = {
            "text": output.text,
            "tokens": output.target,
            "score": round(output.score, 6),
            "finished": output.finished,
        }
        if alignments == "pharaoh":
            fields["alignment"] = _pharaoh(output)
        elif alignments:
            fields["source"] = output.source
            fields["weights"] = [[round(x, 6) for x in row] for row in output.weights.tolist()]
        return fields

    row = {
        "line": number,
        "source": line,
        "dropped": outputs[0].dropped,
        "unseen": outputs[0].unseen,
        "outputs": [described(output) for output in outputs],
    }
    yield json.dumps(row, ensure_ascii=False)


def _pharaoh(output: Translation) -> str:
    return " ".join(f"{i}-{j}" for i, j in output.alignment)


FORMATS: dict[str, Callable[[int, str, list[Translation], str | None], Iterator[str]]] = {
    "text": _text,
    "tsv": _tsv,
    "jsonl": _jsonl,
}
