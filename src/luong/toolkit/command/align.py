"""luong align"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from luong.toolkit.choices import STEPS, THRESHOLD
from luong.toolkit.command import options, terminal
from luong.toolkit.errors import UsageError
from luong.toolkit.inference.links import AGREED, JOINS, WAYS, write
from luong.toolkit.outputs import destination


def run(argv: Sequence[str]) -> None:
    """luong align MODEL --source FILE --target FILE [--output FILE] [--reverse MODEL]"""
    arguments = _parser().parse_args(list(argv))
    _check(arguments)
    device = options.find_device(arguments)

    from luong.toolkit.inference import alignment
    from luong.toolkit.text.lines import pairs

    model = options.load_on(device, arguments, arguments.model)
    other = options.load_on(device, arguments, arguments.reverse) if arguments.reverse else None
    found = alignment.links_of(
        model,
        pairs(arguments.source, arguments.target),
        reverse=other,
        how=arguments.join,
        step=arguments.step,
        threshold=arguments.threshold,
        batch_size=arguments.batch_size,
    )
    with destination(arguments.output) as file:
        for links in found:
            print(write(links), file=file)


def _parser() -> terminal.Parser:
    parser = terminal.Parser(
        "align",
        "Align the words of a parallel text by forced decoding: a line of links `i-j` for every "
        "pair, in order (Pharaoh's format: source-target, positions from 0). Links are between "
        "words, or between characters where the model reads or writes those.",
    )
    options.add_model(parser)
    options.add_pairs(parser)
    add = parser.add_argument
    add("--output", type=Path, metavar="FILE", help="file to write; default: stdout")
    add(
        "--step",
        choices=STEPS,
        default=STEPS[0],
        help="step whose weights a target word gets; predicted: the step that predicted it; "
        "posterior: that step once the word is known, which costs more and is right more often; "
        "read: the step that read it; paper: read, or predicted with the location score",
    )
    options.add_number(
        add,
        "--threshold",
        THRESHOLD,
        "link all source words of at least this weight; default: the one of largest weight",
    )
    add(
        "--reverse",
        type=Path,
        metavar="MODEL",
        help="folder of a model of the other direction, whose links are joined with these",
    )
    add(
        "--join",
        choices=WAYS,
        help=f"how to join both directions; product: link where the geometric mean of both weights "
        f"is at least --threshold, by default {AGREED}; default: {JOINS[-1]}",
    )
    options.add_computing(parser, batch_size=64)
    return parser


def _check(arguments: Namespace) -> None:
    if arguments.join and not arguments.reverse:
        raise UsageError("--join joins two directions: give --reverse")
    inputs = (arguments.source, arguments.target, arguments.model, arguments.reverse)
    options.check_output(arguments.output, *inputs)
