"""Alignments and training curves as pictures."""

from __future__ import annotations

import csv
import math
import re
import unicodedata
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from luong.toolkit.errors import ToolkitError, needs_toolkit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
_CELL = 0.42  # inches
_LETTER = 0.11  # inches that a letter of a label takes
_BAR = 0.18  # inches, the width of a scale
_GREY = "0.85"


class Alignment(Protocol):
    """What can be drawn: a translation is such."""

    @property
    def source(self) -> Sequence[str]: ...
    @property
    def target(self) -> Sequence[str]: ...
    @property
    def weights(self) -> Any: ...


class Picture(NamedTuple):
    """Weights (n, m) with a label for every row (target) and column (source)."""

    weights: Any
    source: Sequence[str]
    target: Sequence[str]


def plot_alignment(
    weights: Any,
    source: Sequence[str] | None = None,
    target: Sequence[str] | None = None,
    *,
    ax: Axes | None = None,
    title: str | None = None,
    colorbar: bool = False,
) -> Axes:
    """Draw attention weights: source from left to right, target from top to bottom.

    Cell (i, j) is the weight of source token j for target token i, from white, 0, to blue, 1.

    Args:
        weights: (n, m), a tensor or array; or a translation, which brings its tokens along.
        source: the m source tokens.
        target: the n target tokens.
        ax: where to draw; the default is a new pyplot figure of fitting size, which a notebook
            shows.
        title: of the axes, below them.
        colorbar: whether to show the scale.

    Returns:
        The axes. A warning names characters that no font on this machine has.

    Raises:
        ValueError: the tokens do not fit the weights, or there are none.
    """
    with needs_toolkit():
        from luong.toolkit import fonts

    picture = _picture(weights, source, target)
    if ax is None:
        from matplotlib import pyplot  # chooses a backend when it is imported

        _, ax = pyplot.subplots(figsize=_size(picture), layout="constrained")
    columns, rows = fonts.labels(picture.source), fonts.labels(picture.target)
    text: dict[str, Any] = {
        "fontfamily": fonts.families([*columns, *rows, title or ""]),
        "fontsize": "large",
    }
    image = ax.imshow(picture.weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    upright = max(map(_length, columns)) <= _CELL
    ax.set_xticks(range(len(columns)), columns, rotation=0 if upright else 90, **text)
    ax.set_yticks(range(len(rows)), rows, **text)
    ax.set_xticks([i - 0.5 for i in range(1, len(columns))], minor=True)
    ax.set_yticks([i - 0.5 for i in range(1, len(rows))], minor=True)
    ax.grid(which="minor", color=_GREY)
    ax.xaxis.tick_top()
    ax.tick_params(which="both", length=0)
    ax.spines[:].set_color(_GREY)
    if title:
        ax.set_xlabel(title, **text)
    if colorbar:
        height = max(_CELL * len(rows), 1.5)
        ax.figure.colorbar(image, ax=ax, label="attention weight", aspect=height / _BAR)
    return ax


def sheet(
    pictures: Sequence[Alignment], titles: Sequence[str] = (), *, columns: int | None = None
) -> Figure:
    """Many alignments in a grid, row by row, with cells of one size everywhere.

    By default there are about as many columns as rows.
    """
    columns = min(columns or math.ceil(math.sqrt(len(pictures))), len(pictures))
    margins = [_margins(picture) for picture in pictures]
    widths, heights = [0.0] * columns, [0.0] * math.ceil(len(pictures) / columns)
    for k, (picture, (left, above)) in enumerate(zip(pictures, margins, strict=True)):
        row, column = divmod(k, columns)
        below = 0.45 if titles else 0.2
        widths[column] = max(widths[column], left + _CELL * len(picture.source) + 0.2)
        heights[row] = max(heights[row], above + _CELL * len(picture.target) + below)
    total = sum(widths), sum(heights)
    figure = _figure(*total)
    for k, (picture, (left, above)) in enumerate(zip(pictures, margins, strict=True)):
        row, column = divmod(k, columns)
        size = _CELL * len(picture.source), _CELL * len(picture.target)
        corner = sum(widths[:column]) + left, total[1] - sum(heights[:row]) - above - size[1]
        x, y, w, h = (a / b for a, b in zip((*corner, *size), total * 2, strict=True))
        plot_alignment(
            picture, ax=figure.add_axes((x, y, w, h)), title=titles[k] if titles else None
        )
    return figure


def curves(path: Path) -> Figure:
    """The columns of a run's `metrics.csv` against its updates; train and dev share axes."""
    table = _numbers(path)
    updates = table.pop("update")
    panels: dict[str, list[str]] = {}
    for name in table:
        if name not in ("seconds", "epoch"):
            panels.setdefault(re.sub("^(train|dev)_", "", name), []).append(name)
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = _figure(4.2 * columns, 3.2 * rows, layout="constrained")
    for k, (title, names) in enumerate(panels.items()):
        ax = figure.add_subplot(rows, columns, k + 1)
        for name in names:
            ax.plot(updates, table[name], marker="o", markersize=3, label=_readable(name))
        ax.set_xlabel("update")
        ax.set_ylabel(_readable(title if len(names) > 1 else names[0]))
        ax.grid(color=_GREY)
        ax.spines[["top", "right"]].set_visible(False)
        if len(names) > 1:
            ax.legend(frameon=False)
    return figure


def figure_of(picture: Alignment, title: str | None = None) -> Figure:
    """One alignment and its scale."""
    width, height = _size(picture)
    figure = _figure(width + 0.9, max(height, 2.0), layout="constrained")
    plot_alignment(picture, ax=figure.subplots(), title=title, colorbar=True)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, SVG or PDF, by the suffix of `path`."""
    check_path(path)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # `fonts` has said it
        figure.savefig(path, dpi=160)


def check_path(path: Path) -> None:
    if path.suffix.lower() not in FORMATS:
        raise ToolkitError(f"{path}: expected a name that ends in {', '.join(FORMATS)}")


def _picture(weights: Any, source: Sequence[str] | None, target: Sequence[str] | None) -> Picture:
    """The arguments of `plot_alignment`, put in order and checked."""
    if hasattr(weights, "weights"):
        source = weights.source if source is None else source
        target = weights.target if target is None else target
        weights = weights.weights
    if hasattr(weights, "detach"):  # a tensor, wherever it lives
        weights = weights.detach().float().cpu().numpy()
    array = np.asarray(weights)
    if array.ndim != 2 or not array.size:
        raise ValueError(f"weights: expected (n, m), neither 0, got shape {array.shape}")
    for name, tokens, count in (("source", source, array.shape[1]), ("target", target, len(array))):
        if tokens is None or len(tokens) != count:
            got = "none" if tokens is None else len(tokens)
            raise ValueError(f"{name}: expected {count} tokens, as the weights have, got {got}")
    assert source is not None
    assert target is not None
    return Picture(array, source, target)


def _figure(width: float, height: float, layout: Literal["constrained"] | None = None) -> Figure:
    from matplotlib.figure import Figure  # pyplot, which opens windows, need not know of it

    return Figure(figsize=(width, height), layout=layout)


def _size(picture: Alignment) -> tuple[float, float]:
    """Inches that an alignment needs: cells, and labels at their left and above."""
    left, above = _margins(picture)
    return left + _CELL * len(picture.source) + 0.2, above + _CELL * len(picture.target) + 0.2


def _margins(picture: Alignment) -> tuple[float, float]:
    """Inches for the labels at the left and above."""
    above = max(map(_length, picture.source))
    return max(map(_length, picture.target)) + 0.2, 0.4 if above <= _CELL else above + 0.2


def _length(label: str) -> float:
    """Inches that a label takes, about; an ideograph is as wide as it is high."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in label)
    return _LETTER * len(label) + 0.06 * wide


def _numbers(path: Path) -> dict[str, list[float]]:
    """The columns of a table that hold numbers; an empty cell is a gap."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
    except OSError as error:
        raise ToolkitError(f"{path}: {error.strerror}") from error
    table = dict[str, list[float]]()
    for name in lines[0] if lines else ():
        with suppress(TypeError, ValueError):
            table[name] = [float(line[name] or "nan") for line in lines]
    if len(table.keys() - {"seconds", "epoch"}) < 2 or "update" not in table:
        raise ToolkitError(f"{path}: no curves in it: expected a column `update`, and others")
    return table


def _readable(name: str) -> str:
    """`dev_per` as `dev PER`."""
    words = name.split("_")
    return " ".join(word if word in _WORDS else word.upper() for word in words)


_WORDS = {"train", "dev", "loss", "learning", "rate", "exact", "perplexity", "tokens"}
