"""The command `luong`: one verb, one function. What is heavy is imported where it is used."""

from __future__ import annotations

import json
import os
import sys
import warnings
from argparse import ArgumentError
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from luong import __version__
from luong.toolkit.errors import ToolkitError, UsageError

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

    from luong.toolkit.translating import Translation

USAGE = """\
usage: luong VERB ...

  train      learn a model from pairs of lines, by a recipe
  translate  a line out for every line in
  evaluate   error rates on pairs that the model has not seen
  plot       an alignment as a picture

`luong VERB --help` tells more. `--debug` shows where an error came from. For example:

  luong train g2p-en --out runs/g2p-en
  luong translate runs/g2p-en attention
"""


def train(argv: Sequence[str]) -> None:
    """luong train RECIPE --out DIR [--training.updates 1000 ...]"""
    from luong.toolkit.config import Config, recipe_path

    recipe = argv[0] if argv and not argv[0].startswith("-") else None
    if recipe is None and "--help" not in argv and "-h" not in argv:
        raise UsageError("the recipe comes first: luong train RECIPE --out DIR")
    parser = _parser(
        "train",
        "Learn a model by a recipe. Every setting is a flag; the recipe gives their defaults. "
        "The same command again on a finished run says so and does nothing.",
        default_config_files=[str(recipe_path(recipe))] if recipe else [],
    )
    parser.add_argument("recipe", help="a packaged recipe (g2p-en), or a YAML file")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the run")
    parser.add_class_arguments(Config)
    try:
        parser.get_defaults()
    except (ArgumentError, TypeError, ValueError) as error:  # jsonargparse raises all three
        raise UsageError(f"{recipe}: {error}") from error
    arguments = parser.instantiate(parser.parse_args(list(argv)))
    config = Config(**{field.name: arguments[field.name] for field in fields(Config)})

    from luong.toolkit.training import train

    train(config, arguments.out)


def translate(argv: Sequence[str]) -> None:
    """luong translate MODEL [TEXT ...] [< lines]"""
    parser = _parser(
        "translate", "A line out for every line in, in order; a blank line for a blank one."
    )
    parser.add_argument("model", type=Path, help="the folder of a trained model")
    parser.add_argument("text", nargs="*", help="what to translate; without it, lines of stdin")
    arguments = parser.parse_args(list(argv))

    from luong.toolkit.translating import Translator

    translator = Translator.load(arguments.model)
    if arguments.text:
        named = [(repr(text), _checked(text)) for text in arguments.text]
        incoming: Iterable[list[tuple[str, str]]] = [named]
    else:
        incoming = _incoming(cast(BufferedReader, sys.stdin.buffer))
    for chunk in incoming:
        names, lines = zip(*chunk, strict=True)
        for name, translation in zip(names, translator.translate(lines), strict=True):
            _report(translation, name)
            print(translation.text)
        sys.stdout.flush()


def evaluate(argv: Sequence[str]) -> None:
    """luong evaluate MODEL [--data CORPUS | --source FILE --target FILE] [--json]"""
    parser = _parser(
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


def plot(argv: Sequence[str]) -> None:
    """luong plot MODEL TEXT [--out FILE]"""
    parser = _parser("plot", "Draw what the model attends to while it translates a line.")
    parser.add_argument("model", type=Path, help="the folder of a trained model")
    parser.add_argument("text", help="what to translate")
    parser.add_argument("--out", type=Path, help="PNG, SVG or PDF; the default is TEXT.png")
    arguments = parser.parse_args(list(argv))

    from luong.toolkit import plotting
    from luong.toolkit.translating import Translator

    out = arguments.out or Path(arguments.text.replace(os.sep, "_") + ".png")
    (translation,) = Translator.load(arguments.model).translate([_checked(arguments.text)])
    _report(translation, arguments.text)
    plotting.save(translation, out)
    print(out)


VERBS = {"train": train, "translate": translate, "evaluate": evaluate, "plot": plot}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; errors are one line on stderr. Returns the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in argv
    argv = [argument for argument in argv if argument != "--debug"]
    for stream in (sys.stdout, sys.stderr):  # UTF-8, whatever the locale
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    warnings.showwarning = _show_warning
    try:
        return _run(argv)
    except SystemExit as end:  # --help
        return int(end.code or 0)
    except BrokenPipeError:  # the reader has gone: nobody to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    except (ArgumentError, ToolkitError, ModuleNotFoundError, OSError) as error:
        if debug:
            raise
        _say(_explain(error))
        return 2 if isinstance(error, (ArgumentError, UsageError)) else 1


def _run(argv: list[str]) -> int:
    match argv:
        case ["--help" | "-h"]:
            print(USAGE, end="")
        case ["--version"]:
            print(f"luong {__version__}")
        case [verb, *rest] if verb in VERBS:
            VERBS[verb](rest)
        case [verb, *_]:
            raise UsageError(f"no verb {verb!r}: expected one of {', '.join(VERBS)}")
        case _:
            raise UsageError(f"expected a verb: {', '.join(VERBS)} (see luong --help)")
    return 0


def _explain(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name} is not installed: pip install 'luong[toolkit]'"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


def _say(text: str) -> None:
    print(f"luong: {text}", file=sys.stderr)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    _say(str(message))


def _parser(verb: str, description: str, **options: Any) -> ArgumentParser:
    from jsonargparse import ArgumentParser

    return ArgumentParser(
        prog=f"luong {verb}", description=description, exit_on_error=False, **options
    )


def _incoming(stream: BufferedReader) -> Iterator[list[tuple[str, str]]]:
    """Lines after their names, as many at a time as are there: none waits for a batch to fill."""
    first, rest = 1, b""
    while chunk := stream.read1(1 << 16):
        *complete, rest = (rest + chunk).split(b"\n")
        yield from _decoded(complete, first)
        first += len(complete)
    yield from _decoded([rest] if rest else [], first)


def _decoded(lines: Iterable[bytes], first: int) -> Iterator[list[tuple[str, str]]]:
    """All `lines` at once; those before a bad one are not lost with it."""
    from luong.toolkit.corpus import numbered

    named: list[tuple[str, str]] = []
    refused: ToolkitError | None = None
    try:
        for line in numbered(lines, "stdin", first):
            named.append(line)  # noqa: PERF402  (keeps what came before an error)
    except ToolkitError as error:
        refused = error
    if named:
        yield named
    if refused:
        raise refused


def _checked(text: str) -> str:
    """`text`, if it came as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ToolkitError(f"not valid UTF-8: {text!r}") from error
    return text


def _report(translation: Translation, where: str) -> None:
    if translation.unseen:
        _say(f"{where}: never seen in training: {' '.join(dict.fromkeys(translation.unseen))}")
    if not translation.finished:
        _say(f"{where}: the output was cut at {len(translation.target)} symbols")
