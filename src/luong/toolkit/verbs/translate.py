"""luong translate"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

from luong.toolkit import streams, terminal
from luong.toolkit.errors import ToolkitError, UsageError
from luong.toolkit.streams import Line, Process

if TYPE_CHECKING:
    from luong.seq2seq.search import Decoding
    from luong.toolkit.translating import Translation, Translator

_LIMITS = ("min_ratio", "min_extra", "max_ratio", "max_extra")
_SAMPLING = ("temperature", "top_k", "top_p", "seed")


def run(argv: Sequence[str]) -> None:
    """luong translate MODEL [TEXT ...] [< lines]"""
    parser = _parser()
    arguments = parser.parse_intermixed_args(list(argv))
    _check(arguments)
    process = Process.here()
    if process.size > 1 and not (arguments.input and arguments.output):
        raise UsageError("several processes share a file: give --input and --output")
    decoding = _decoding(arguments)
    options = {
        "decoding": decoding,
        "prefix": terminal.checked(arguments.prefix),
        "replace_unknown": dictionary(arguments),
        "max_source": arguments.max_source_length,
        "batch_size": arguments.batch_size,
    }
    translator = load(arguments)
    layout = FORMATS[arguments.format]
    with _output(arguments.output, process) as file:
        for chunk in _incoming(arguments, process):
            names, lines = zip(*chunk, strict=True)
            numbers = [_number(name, i) for i, name in enumerate(names, 1)]
            found = translator.search(lines, first=numbers[0], **options)
            for name, number, line, outputs in zip(names, numbers, lines, found, strict=True):
                terminal.report(outputs[0], name)
                for row in layout(number, line, outputs, arguments.alignments):
                    print(row, file=file)
            file.flush()


def _parser() -> ArgumentParser:
    parser = terminal.Parser(
        "translate", "A line out for every line in, in order; a blank line for a blank one."
    )
    add_model(parser)
    parser.add_argument("text", nargs="*", help="what to translate; without it, lines of stdin")
    add = parser.add_argument
    add("--input", type=Path, help="a file to read, which processes under torchrun share")
    add("--output", type=Path, help="a file to write, which is there when it is complete")
    add(
        "--format",
        choices=tuple(FORMATS),
        default="text",
        help="text: the best output. tsv: line, rank, score[, alignment], output. "
        "jsonl: an object for a line, with all outputs",
    )
    add(
        "--alignments",
        choices=("pharaoh", "matrix"),
        help="pharaoh: source-target links from 0, as 0-0 1-2; matrix: all weights (jsonl)",
    )
    add_unknown(parser)
    add("--max-source-length", type=int, default=1000, help="symbols of a line that are read")
    _add_search(parser)
    return parser


def _add_search(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("search").add_argument
    add("--beam", type=int, default=1, help="open hypotheses of a sentence; 1 is greedy search")
    add("--n-best", type=int, default=1, help="outputs of a sentence, best first")
    add(
        "--length-penalty",
        type=float,
        default=0.0,
        help="a: rank outputs of n symbols by log-probability / n^a; 0: by log-probability",
    )
    add("--min-ratio", type=float, default=0.0, help="at least as many symbols per source symbol")
    add("--min-extra", type=int, default=0, help="and as many more")
    add("--max-ratio", type=float, default=2.0, help="at most as many symbols per source symbol")
    add("--max-extra", type=int, default=10, help="and as many more; then an output is cut")
    add("--prefix", default="", help="what every output begins with")
    add = parser.add_argument_group("sampling").add_argument
    add("--sample", action="store_true", help="draw outputs, instead of the most probable ones")
    add("--temperature", type=float, help="below 1: nearer to the most probable (1)")
    add("--top-k", type=int, help="draw from so many symbols only; 0: from all (0)")
    add("--top-p", type=float, help="draw from so much of the probability only (1)")
    add("--seed", type=int, help="the same seed draws the same (1)")


def add_model(parser: ArgumentParser, nargs: Literal["?"] | None = None) -> None:
    """The options that name a model, and how it runs."""
    add = parser.add_argument
    add("model", type=Path, nargs=nargs, help="the folder of a trained model")
    add(
        "--ensemble",
        action="append",
        default=[],
        metavar="MODEL",
        help="one more model of the same vocabularies, to predict together; may be repeated",
    )
    add("--batch-size", type=int, default=256, help="lines at a time, at most")
    add("--device", help="cpu, cuda, cuda:1, ...; the default is a GPU where there is one")
    add("--bf16", action="store_true", help="compute in bfloat16, which is less exact")


def add_unknown(parser: ArgumentParser) -> None:
    """The options of unknown words."""
    add = parser.add_argument
    add("--replace-unknown", action="store_true", help="put source words for unknown symbols")
    add("--dictionary", type=Path, help="or what lines source<TAB>target of a file have for them")


def load(arguments: Namespace) -> Translator:
    """The model or the ensemble of `add_model`."""
    import torch

    from luong.toolkit.translating import Translator, default_device

    try:
        device = torch.device(arguments.device or default_device())
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch raises both
        raise UsageError(f"--device: {str(error).splitlines()[0]}") from error
    dtype = torch.bfloat16 if arguments.bf16 else torch.float32
    return Translator.load(
        arguments.model, *map(Path, arguments.ensemble), device=device, dtype=dtype
    )


def check_positive(arguments: Namespace, *names: str) -> None:
    """Refuse numbers below 1; None is not given."""
    for name in names:
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')}: expected at least 1, got {value}")


def _check(arguments: Namespace) -> None:
    check_positive(arguments, "batch_size", "max_source_length")
    if arguments.text and arguments.input:
        raise UsageError("give --input, or what to translate")
    if arguments.format == "text" and (arguments.n_best > 1 or arguments.alignments):
        raise UsageError("--n-best and --alignments need --format tsv or --format jsonl")
    if arguments.format == "tsv" and arguments.alignments == "matrix":
        raise UsageError("--alignments matrix needs --format jsonl")
    given = [name for name in _SAMPLING if getattr(arguments, name) is not None]
    if given and not arguments.sample:
        raise UsageError(f"--{given[0].replace('_', '-')} needs --sample")


def _decoding(arguments: Namespace) -> Decoding:
    from luong.seq2seq.search import Decoding, Sampling

    names = ("beam", "n_best", "length_penalty", *_LIMITS)
    try:
        given = {
            name: getattr(arguments, name)
            for name in _SAMPLING
            if getattr(arguments, name) is not None
        }
        sampling = Sampling(**given)
        settings = {name: getattr(arguments, name) for name in names}
        return Decoding(**settings, sampling=sampling if arguments.sample else None)
    except ValueError as error:
        field, _, reason = str(error).partition(":")
        raise UsageError(f"--{field.replace('_', '-')}:{reason}") from error


def dictionary(arguments: Namespace) -> Mapping[str, str] | None:
    """Source words and what stands for them; of several lines for a word the first counts."""
    if arguments.dictionary and not arguments.replace_unknown:
        raise UsageError("--dictionary needs --replace-unknown")
    if not arguments.replace_unknown:
        return None
    path: Path | None = arguments.dictionary
    lines = chain.from_iterable(streams.share(path, Process(0, 1))) if path else ()
    entries: dict[str, str] = {}
    for name, line in lines:
        word, tab, meaning = line.partition("\t")
        if not tab or not word or "\t" in meaning:
            raise ToolkitError(f"{name}: expected source<TAB>target, got {line[:80]!r}")
        entries.setdefault(word, meaning)
    return entries


def _incoming(arguments: Namespace, process: Process) -> Iterable[list[Line]]:
    if arguments.text:
        return [[(repr(text), terminal.checked(text)) for text in arguments.text]]
    if arguments.input:
        return streams.share(arguments.input, process)
    return streams.piped(cast(BufferedReader, sys.stdin.buffer), "stdin")


def _output(path: Path | None, process: Process) -> AbstractContextManager[TextIO]:
    return streams.joined(path, process) if path else nullcontext(sys.stdout)


def _number(name: str, place: int) -> int:
    """The number of a line, which is part of its name; words of the command line are counted."""
    number = name.rpartition(":")[2]
    return int(number) if number.isdecimal() else place


def _text(_: int, __: str, outputs: list[Translation], ___: str | None) -> Iterator[str]:
    yield outputs[0].text


def _tsv(number: int, _: str, outputs: list[Translation], alignments: str | None) -> Iterator[str]:
    for rank, output in enumerate(outputs, 1):
        links = [_pharaoh(output)] if alignments else []
        yield "\t".join([str(number), str(rank), f"{output.score:.6f}", *links, output.text])


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

    row = {"line": number, "source": line, "outputs": [described(output) for output in outputs]}
    yield json.dumps(row, ensure_ascii=False)


def _pharaoh(output: Translation) -> str:
    return " ".join(f"{i}-{j}" for i, j in output.alignment)


FORMATS: dict[str, Callable[[int, str, list[Translation], str | None], Iterator[str]]] = {
    "text": _text,
    "tsv": _tsv,
    "jsonl": _jsonl,
}
