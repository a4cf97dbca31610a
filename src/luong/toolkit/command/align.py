"""luong align"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from luong.toolkit.choices import STEPS, THRESHOLD
from luong.toolkit.command import options, terminal
from luong.toolkit.errors import UsageError
from luong.toolkit.inference.links import AGREED, JOINS, WAYS, write
from luong.toolkit.outputs import destination


def run(argv: Sequence[str]) -> None:
    """luong align MODEL --source FILE --target FILE [--output FILE] [--reverse MODEL]"""
    parser = terminal.Parser(
        "align",
        "Word alignments of a parallel text, by forced decoding: a line of links `i-j` for every "
        "pair, in order (Pharaoh's format: source-target, positions from 0). Links are between "
        "words, or between characters where the model reads or writes those.",
    )
    options.add_model(parser)
    parser.add_argument("--source", type=Path, required=True, help="a file of sources, one a line")
    parser.add_argument("--target", type=Path, required=True, help="a file of their targets")
    parser.add_argument("--output", type=Path, help="where to write; the default is stdout")
    parser.add_argument(
        "--step",
        choices=STEPS,
        default=STEPS[0],
        help="whose weights a target word gets: those of the step that predicted it; posterior: "
        "the same once the word is known, which costs more and is right more often; those of the "
        "step that read it; paper: read, where the score is not location",
    )
    options.add_number(
        parser.add_argument,
        "--threshold",
        THRESHOLD,
        "link all source words of at least this weight, not just the one of largest weight",
    )
    parser.add_argument("--reverse", type=Path, help="a model of the other direction, to join with")
    parser.add_argument(
        "--join",
        choices=WAYS,
        help=f"how to join directions; the default is {JOINS[-1]}. product: link where the "
        f"geometric mean of both weights is at least --threshold, by default {AGREED}",
    )
    options.add_computing(parser, batch_size=64)
    arguments = parser.parse_args(list(argv))
    if arguments.join and not arguments.reverse:
        raise UsageError("--join joins two directions: give --reverse")
    inputs = (arguments.source, arguments.target, arguments.model, arguments.reverse)
    options.check_output(arguments.output, *inputs)
    device = options.find_device(arguments)

    from luong.toolkit.inference import alignment

    model = options.load_on(device, arguments, arguments.model)
    other = options.load_on(device, arguments, arguments.reverse) if arguments.reverse else None
    found = alignment.links_of(
        model,
        alignment.read(arguments.source, arguments.target),
        reverse=other,
        how=arguments.join,
        step=arguments.step,
        threshold=arguments.threshold,
        batch_size=arguments.batch_size,
    )
    with destination(arguments.output) as file:
        for links in found:
            print(write(links), file=file)
