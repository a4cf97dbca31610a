"""luong evaluate"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from luong.toolkit import terminal
from luong.toolkit.errors import UsageError


def run(argv: Sequence[str]) -> None:
    """luong evaluate MODEL [--data CORPUS | --source FILE --target FILE] [--json]"""
    parser = terminal.parser(
        "evaluate",
        "Word and phoneme error rates (WER, PER) of a model's output, one hypothesis a source. "
        "A source with several references is right if it equals any of them.",
    )
    parser.add_argument("model", type=Path, help="the folder of a trained model")
    parser.add_argument("--data", help="a corpus as in a recipe; the default is the recipe's test")
    parser.add_argument("--source", type=Path, help="a file of sources, one a line")
    parser.add_argument("--target", type=Path, help="a file of their targets, one a line")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(list(argv))
    if bool(arguments.source) != bool(arguments.target):
        raise UsageError("--source and --target go together")
    if arguments.source and arguments.data:
        raise UsageError("give --data, or --source and --target")

    from luong.toolkit import corpus, evaluating
    from luong.toolkit.config import Config
    from luong.toolkit.translating import Translator

    translator = Translator.load(arguments.model)
    if arguments.source:
        name = f"{arguments.source}, {arguments.target}"
        pairs = corpus.read_parallel(arguments.source, arguments.target)
    else:
        data: str | None = arguments.data or Config.load(arguments.model / "config.yaml").data.test
        if data is None:
            raise UsageError("the recipe names no test corpus: give --data")
        name, pairs = data, corpus.read(data)
    result = evaluating.evaluate(translator, pairs)
    if arguments.json:
        print(json.dumps({"data": name, **result._asdict()}))
    else:
        print(f"{name}: {result.sources:,} sources")
        print(f"WER {result.wer:.2f} %   PER {result.per:.2f} %")
