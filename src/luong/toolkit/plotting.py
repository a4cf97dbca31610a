"""Alignments as pictures."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font

from luong.toolkit.errors import ToolkitError
from luong.toolkit.translating import Translation

FORMATS = (".png", ".svg", ".pdf")
_CELL = 0.42  # inches
_NOT_TEXT = "Last Resort"  # has a box for every character, and a shape for none


def draw(translation: Translation, figure: Figure) -> None:
    """The weights of a translation: source from left to right, output from top to bottom.

    Row i shows what was attended when output i was predicted; a row sums to 1.
    """
    axes = figure.subplots()
    image = axes.imshow(translation.weights.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
    columns, rows = visible(translation.source), visible(translation.target)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xticks([i - 0.5 for i in range(1, len(columns))], minor=True)
    axes.set_yticks([i - 0.5 for i in range(1, len(rows))], minor=True)
    axes.grid(which="minor", color="0.85")
    axes.xaxis.tick_top()
    axes.tick_params(which="both", length=0)
    axes.tick_params(labelsize="large")
    axes.spines[:].set_color("0.85")
    figure.colorbar(image, ax=axes, label="attention weight")


def save(translation: Translation, path: Path) -> None:
    """Draw a translation into a file: PNG, SVG or PDF by its suffix."""
    if path.suffix.lower() not in FORMATS:
        raise ToolkitError(f"{path}: expected a name that ends in {', '.join(FORMATS)}")
    if not translation.target:
        raise ToolkitError("there is nothing to draw: the output is empty")
    columns, rows = len(translation.source), len(translation.target)
    margin = 0.12 * max(map(len, translation.target))  # the labels of the rows
    size = (_CELL * columns + margin + 1.2, max(_CELL * rows + 0.6, 2.0))
    texts = [*visible(translation.source), *visible(translation.target)]
    with matplotlib.rc_context({"font.family": families(texts)}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # `families` has said it
        figure = Figure(figsize=size, layout="constrained")
        draw(translation, figure)
        figure.savefig(path, dpi=160)


def visible(pieces: Sequence[str]) -> list[str]:
    """The pieces as labels: white space made visible."""
    return ["␣" if piece.isspace() else piece for piece in pieces]


def families(texts: Iterable[str]) -> list[str]:
    """Fonts that together have every character of `texts`; a warning for those that none has."""
    missing = {ord(character) for text in texts for character in text}
    default = font_manager.FontProperties().get_name()
    entries = font_manager.fontManager.ttflist
    chosen: list[str] = []
    for entry in sorted(entries, key=lambda entry: (entry.name != default, entry.name)):
        if not missing:
            break
        if entry.name in chosen or _NOT_TEXT in entry.name or entry.style != "normal":
            continue
        found = missing & FT2Font(entry.fname).get_charmap().keys()
        if found:
            chosen.append(entry.name)
            missing -= found
    for code in sorted(missing):
        warnings.warn(
            f"no font on this machine has {chr(code)} "
            f"({unicodedata.name(chr(code), f'U+{code:04X}')}): it is drawn as a box; "
            "install a font of its script, such as one of the Noto fonts",
            stacklevel=2,
        )
    return chosen or [default]
