"""luong align"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from luong.toolkit import terminal
from luong.toolkit.errors import UsageError
from luong.toolkit.files import whole
from luong.toolkit.links import AGREED, JOINS, WAYS, write


def run(argv: Sequence[str]) -> None:
    """luong align MODEL --source FILE --target FILE [--output FILE] [--reverse MODEL]"""
    parser = terminal.Parser(
        "align",
        "Word alignments of a parallel text, by forced decoding: a line of links `i-j` for every "
        "pair, in order (Pharaoh's format: source-target, positions from 0). Links are between "
        "words, or between characters where the model reads or writes those.",
    )
    parser.add_argument("model", type=Path, help="the folder of a trained model")
    parser.add_argument("--source", type=Path, required=True, help="a file of sources, one a line")
    parser.add_argument("--target", type=Path, required=True, help="a file of their targets")
    parser.add_argument("--output", type=Path, help="where to write; the default is stdout")
    parser.add_argument(
        "--step",
        choices=("predicted", "posterior", "read", "paper"),
        default="predicted",
        help="whose weights a target word gets: those of the step that predicted it; posterior: "
        "the same once the word is known, which costs more and is right more often; those of the "
        "step that read it; paper: read, where the score is not location",
    )
    parser.add_argument(
        "--threshold",
        type=float,
        help="link all source words of at least this weight, not just the one of largest weight",
    )
    parser.add_argument("--reverse", type=Path, help="a model of the other direction, to join with")
    parser.add_argument(
        "--join",
        choices=WAYS,
        help=f"how to join directions; the default is {JOINS[-1]}. product: link where the "
        f"geometric mean of both weights is at least --threshold, by default {AGREED}",
    )
    parser.add_argument("--batch-size", type=int, default=64, help="pairs at a time, at most")
    arguments = parser.parse_args(list(argv))
    if arguments.threshold is not None and not 0 < arguments.threshold <= 1:
        raise UsageError(f"--threshold: expected above 0, up to 1, got {arguments.threshold}")
    if arguments.batch_size < 1:
        raise UsageError(f"--batch-size: expected at least 1, got {arguments.batch_size}")
    if arguments.join and not arguments.reverse:
        raise UsageError("--join joins two directions: give --reverse")

    from luong.toolkit import aligning
    from luong.toolkit.translating import Translator

    pairs = aligning.read(arguments.source, arguments.target)
    options = {name: getattr(arguments, name) for name in ("step", "threshold", "batch_size")}
    model = Translator.load(arguments.model)
    if arguments.reverse:
        other = Translator.load(arguments.reverse)
        how = arguments.join or JOINS[-1]
        found = aligning.align_both(model, other, pairs, how=how, **options)
    else:
        found = aligning.align(model, pairs, **options)
    with _opened(arguments.output) as file:
        for links in found:
            print(write(links), file=file)


@contextmanager
def _opened(path: Path | None) -> Iterator[TextIO]:
    """stdout, or a file that is there when all has been written to it."""
    if path is None:
        yield sys.stdout
        return
    with whole(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
        yield file
