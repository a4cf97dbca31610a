"""luong score"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import islice

from luong.toolkit.command import options, terminal

_POOL = 16_384  # pairs that are read ahead, so that those of similar length go together


def run(argv: Sequence[str]) -> None:
    """luong score MODEL --source FILE --target FILE"""
    arguments = _parser().parse_args(list(argv))

    from luong.toolkit.text.lines import read_pairs

    pairs = iter(read_pairs(arguments.source, arguments.target))
    translator = options.load(arguments)
    total, symbols, count = 0.0, 0, 0
    while pool := list(islice(pairs, _POOL)):
        sources, targets = zip(*pool, strict=True)
        scores = translator.score(sources, targets, batch_size=arguments.batch_size)
        for target, score in zip(targets, scores, strict=True):
            if arguments.json:
                tokens = [*translator.target.split(target), None]  # None: the end of the sentence
                steps = [round(step, 6) for step in score.steps]
                row = {"score": round(score.score, 6), "tokens": tokens, "steps": steps}
                print(json.dumps(row, ensure_ascii=False))
            else:
                print(f"{score.score:.6f}")
            total, symbols, count = total + score.score, symbols + len(score.steps), count + 1
    terminal.say(f"{count:,} pairs, perplexity {math.exp(-total / symbols):.4f} per target symbol")


def _parser() -> terminal.Parser:
    parser = terminal.Parser(
        "score",
        "Print the natural logarithm of the probability of each target given its source: a line "
        "for each pair, in order; and on stderr the perplexity per target symbol, ends of "
        "sentences included.",
    )
    options.add_model(parser)
    options.add_pairs(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, symbol by symbol")
    options.add_ensemble(parser)
    options.add_computing(parser)
    return parser
