"""luong plot"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from argparse import Namespace
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from luong.seq2seq.decoding import RANGES
from luong.toolkit.choices import COLUMNS, STEPS
from luong.toolkit.command import options, terminal
from luong.toolkit.errors import ToolkitError, UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from luong.toolkit.inference import alignment
    from luong.toolkit.inference.pictures import Picture
    from luong.toolkit.inference.translator import Translation, Translator


_RESERVED = re.compile(  # names of devices on Windows, whatever follows a dot; and our own
    r"(con|prn|aux|nul|com[\d¹²³]|lpt[\d¹²³]|conin\$|conout\$)(\..*)?$|curves$|alignments$",
    re.IGNORECASE,
)
_MOST = 100  # alignments of a sheet
_LONGEST = 2000  # symbols of a side of --target


def run(argv: Sequence[str]) -> None:
    """luong plot MODEL TEXT ... | --input FILE | --curves [--out FILE]"""
    parser = _parser()
    arguments = parser.parse(argv)
    _check(arguments)

    from luong.toolkit.inference import pictures

    out = _out(arguments)
    pictures.check_path(out)
    with pictures.settings():
        pictures.save(_curves(arguments) if arguments.curves else _alignments(arguments), out)
    print(out)


def _parser() -> terminal.Parser:
    parser = terminal.Parser(
        "plot",
        "Draw what a model attends to while it translates: one line, or a sheet of many. "
        "--target draws a given translation, --curves how the model was trained.",
    )
    add = parser.add_argument
    options.add_model(parser)
    add("text", nargs="*", help="line to translate and draw; several make a sheet")
    add("--input", type=Path, metavar="FILE", help="file of lines to translate and draw in a sheet")
    add("--target", metavar="TEXT", help="draw this translation of TEXT instead of the model's own")
    options.add_number(
        add, "--n-best", RANGES["n_best"], "draw a sheet of the N best translations of TEXT"
    )
    options.add_settings(add, "beam")
    add(
        "--step",
        choices=STEPS,
        default=STEPS[0],
        help="step whose weights the row of a symbol shows; predicted: the step that predicted it; "
        "posterior: that step once the symbol is known; read: the step that read it; paper: read, "
        "or predicted with the location score",
    )
    options.add_number(
        add, "--columns", COLUMNS, "number of columns of a sheet; default: about square"
    )
    add(
        "--curves", action="store_true", help="draw the training curves, from the run's metrics.csv"
    )
    add(
        "--out",
        type=Path,
        metavar="FILE",
        help="PNG, SVG or PDF file to write; default: TEXT.png, alignments.png or curves.png",
    )
    return parser


def _check(arguments: Namespace) -> None:
    if bool(arguments.text) + bool(arguments.input) + arguments.curves != 1:
        raise UsageError("what to draw: give one of TEXT, --input and --curves")
    if (arguments.target is not None or arguments.n_best) and len(arguments.text) != 1:
        raise UsageError("--target and --n-best are about one TEXT: give it")
    if arguments.target is not None and arguments.n_best:
        raise UsageError("give --target or --n-best")
    wanted = max(len(arguments.text), arguments.n_best or 0)
    if wanted > _MOST:
        raise UsageError(f"a sheet holds at most {_MOST} alignments, not {wanted:,}")


def _out(arguments: Namespace) -> Path:
    if arguments.out:
        return Path(arguments.out)
    if arguments.curves:
        return Path("curves.png")
    if arguments.input or len(arguments.text) > 1:
        return Path("alignments.png")
    return Path(file_name(terminal.checked(arguments.text[0])) + ".png")


def file_name(text: str) -> str:
    """Return a name for the picture of `text` that any file system takes: `text` itself, where it
    is one.

    Where it is not, or where capitals or marks alone tell it from another, a hash keeps apart what
    would get the same name.
    """
    plain = "".join(
        c if c.isprintable() and c not in '/\\:*?"<>|' else "_"
        for c in unicodedata.normalize("NFC", text)
    )
    plain = re.sub("^[-.~ ]|[. ]$", "_", plain).encode()[:100].decode(errors="ignore")
    plain = f"_{plain}" if _RESERVED.match(plain) else plain
    if plain and plain == text.casefold():
        return plain
    return f"{plain or '_'}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _curves(arguments: Namespace) -> Figure:
    from luong.toolkit.training import curves

    return curves.draw(arguments.model / "metrics.csv")


def _alignments(arguments: Namespace) -> Figure:
    from luong.toolkit.inference.pictures import figure_of, sheet
    from luong.toolkit.inference.translator import Translator

    translator = Translator.load(arguments.model)
    titles: list[str] = []
    if arguments.target is not None:
        pictures = [_forced(translator, arguments)]
    else:
        pictures, titles = _translated(translator, arguments)
    if not pictures:
        raise ToolkitError("there is nothing to draw: the output is empty")
    if len(pictures) == 1 and not any(titles):
        return figure_of(pictures[0])
    return sheet(pictures, titles, columns=arguments.columns)


def _forced(translator: Translator, arguments: Namespace) -> Picture:
    from luong.toolkit.inference import alignment
    from luong.toolkit.inference.pictures import Picture
    from luong.toolkit.text import batches
    from luong.toolkit.text.lines import Pair

    source, target = (terminal.checked(text) for text in (arguments.text[0], arguments.target))
    pieces = translator.source.split(source), translator.target.split(target)
    if not all(pieces):
        raise ToolkitError("there is nothing to draw: a side is empty")
    if max(map(len, pieces)) > _LONGEST:
        raise ToolkitError(f"too long to draw: expected at most {_LONGEST:,} symbols of a side")
    (example,) = batches.examples([Pair(source, target)], translator.source, translator.target)
    return Picture(alignment.attended(translator, example, arguments.step), *pieces)


def _translated(translator: Translator, arguments: Namespace) -> tuple[list[Picture], list[str]]:
    """Return pictures of what the model puts out, and titles where they have any."""
    if arguments.input:
        from luong.toolkit.text.lines import lines

        texts = list(islice(lines(arguments.input), _MOST + 1))
        if len(texts) > _MOST:
            raise ToolkitError(f"{arguments.input}: more than {_MOST} lines, which a sheet holds")
        names = [f"{arguments.input}:{number}" for number in range(1, len(texts) + 1)]
    else:
        texts = [terminal.checked(text) for text in arguments.text]
        names = [repr(text) for text in texts]
    outputs = translator.search(texts, options.decoding(arguments, "beam", "n_best"))
    titles = texts if len(texts) > 1 else [""]
    found = [best for best, *_ in outputs]
    if arguments.n_best:
        (found,) = outputs
        texts, names = texts * len(found), names * len(found)
        titles = [f"{k}: log p = {entry.score:.2f}" for k, entry in enumerate(found, 1)]
    pictures = []
    drawn = []
    for text, name, title, translation in zip(texts, names, titles, found, strict=True):
        terminal.report(translation, name)
        if translation.target:
            pictures.append(_picture(translator, text, translation, arguments.step))
            drawn.append(title)
        elif len(texts) > 1:
            terminal.say(f"{name}: not drawn: the output is empty")
    return pictures, drawn


def _picture(
    translator: Translator, text: str, translation: Translation, step: alignment.StepName
) -> Picture:
    """Return the picture of a translation, decoded by force so that a step reads its last symbol,
    too.
    """
    from luong.seq2seq.model import END, UNKNOWN
    from luong.toolkit.inference import alignment
    from luong.toolkit.inference.pictures import Picture
    from luong.toolkit.text.batches import Example

    (read,) = translator.source.encode([text])
    source = [*read[: len(translation.source)], END]  # a long line is cut
    names = {name: symbol for symbol, name in enumerate(translator.target.names)}
    target = [names.get(piece, UNKNOWN) for piece in translation.target]
    weights = alignment.attended(translator, Example(source, [*target, END]), step)
    return Picture(weights, translation.source, translation.target)
