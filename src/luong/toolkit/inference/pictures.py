"""Pictures of alignments, of bounded size for alignments of any size."""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from luong.toolkit import outputs
from luong.toolkit.errors import ToolkitError, needs_toolkit
from luong.toolkit.inference import labels
from luong.toolkit.inference.labels import Labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


FORMATS = (".png", ".svg", ".pdf")
# Text from users is not parsed as a formula.
PLAIN: dict[str, Any] = {"parse_math": False, "usetex": False}
GREY = "0.85"
_CELL = 0.42  # inches of a cell of an alignment that is not too long for it
_LONGEST = 20  # inches of all cells along a side: those of longer alignments are smaller
_FINEST = 0.1  # inches of a cell that still has a frame
_LINE = 0.2  # inches that a line of text takes: closer labels are left out
_SPAN = 0.3  # inches that labels of spans take
_BAR = 0.18  # inches, the width of a scale
_DPI = 160
_PIXELS = 1 << 24  # of a PNG
_SIDE = (1 << 16) - 1  # pixels: no more can be drawn


class Alignment(Protocol):
    """An alignment that can be drawn: a translation is one."""

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


class _Side(NamedTuple):
    """The labels along a side of an alignment, and its cells."""

    labels: Labels
    cell: float  # inches
    every: int  # the labels 0, every, 2 · every ... are drawn

    @property
    def length(self) -> float:
        """The length of all cells, in inches."""
        return self.cell * len(self.labels.texts)

    @property
    def across(self) -> bool:
        """Return whether labels of columns can stand side by side."""
        return self.labels.width <= self.cell * self.every

    @property
    def spans(self) -> Sequence[tuple[int, int, str]]:
        """Return the spans that are drawn beside the labels; none unless all have room."""
        return self.labels.spans if self.every == 1 else ()


class _Panel(NamedTuple):
    """An alignment with its labels, and the inches that these take."""

    picture: Picture
    columns: _Side
    rows: _Side
    title: str

    @property
    def high(self) -> float:
        """The height of the labels above, in inches."""
        return 0.4 if self.columns.across else self.columns.labels.width + 0.2

    @property
    def wide(self) -> float:
        """The width of the labels at the left, in inches."""
        return self.rows.labels.width + 0.2

    @property
    def above(self) -> float:
        return self.high + (_SPAN if self.columns.spans else 0)

    @property
    def left(self) -> float:
        return max(self.wide + (_SPAN if self.rows.spans else 0), self._aside)

    @property
    def right(self) -> float:
        return max(0.2, self._aside)

    @property
    def below(self) -> float:
        return 0.45 if self.title else 0.2

    @property
    def size(self) -> tuple[float, float]:
        """The width and height of everything, in inches."""
        width = self.left + self.columns.length + self.right
        return width, self.above + self.rows.length + self.below

    @property
    def _aside(self) -> float:
        """The inches by which the title is longer than the cells, at either end."""
        return (labels.width(self.title) - self.columns.length) / 2


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
    Letters that stand for a syllable together (decomposed Hangul), and marks on a letter, have it
    beside them. Of very many labels some are left out.

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
        from luong.toolkit.inference import fonts

    (panel,) = _panels([_picture(weights, source, target)], [title or ""])
    if ax is None:
        from matplotlib import pyplot  # pyplot chooses a backend when it is imported

        _, ax = pyplot.subplots(figsize=panel.size, layout="constrained")
    _draw(ax, panel, fonts.families(_texts(panel)), colorbar=colorbar)
    return ax


def sheet(
    pictures: Sequence[Alignment], titles: Sequence[str] = (), *, columns: int | None = None
) -> Figure:
    """Return many alignments in a grid, row by row, with cells of one size everywhere.

    By default there are about as many columns as rows.
    """
    from luong.toolkit.inference import fonts

    columns = min(columns or math.ceil(math.sqrt(len(pictures))), len(pictures))
    panels = _panels(pictures, titles or [""] * len(pictures))
    grid = [panels[k : k + columns] for k in range(0, len(panels), columns)]
    widths = [max(panel.size[0] for panel in panels[k::columns]) for k in range(columns)]
    heights = [max(panel.size[1] for panel in row) for row in grid]
    figure = figure_sized(sum(widths), sum(heights))
    families = fonts.families([text for panel in panels for text in _texts(panel)])
    for k, row in enumerate(grid):
        for column, panel in enumerate(row):
            size = panel.columns.length, panel.rows.length
            corner = sum(widths[:column]) + panel.left, sum(heights[k:]) - panel.above - size[1]
            x, y, w, h = np.divide((*corner, *size), (sum(widths), sum(heights)) * 2).tolist()
            _draw(figure.add_axes((x, y, w, h)), panel, families)
    return figure


def figure_of(picture: Alignment, title: str | None = None) -> Figure:
    """Return one alignment and its scale."""
    from luong.toolkit.inference import fonts

    (panel,) = _panels([picture], [title or ""])
    width, height = panel.size
    figure = figure_sized(width + 0.9, max(height, 2.0), layout="constrained")
    _draw(figure.subplots(), panel, fonts.families(_texts(panel)), colorbar=True)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, SVG or PDF, by the suffix of `path`; a failure leaves no file.

    A PNG has at most 2^24 pixels: a larger figure gets fewer dots an inch, with a warning.
    """
    check_path(path)
    width, height = figure.get_size_inches()
    dpi = min(_DPI, math.sqrt(_PIXELS / (width * height)), _SIDE / max(width, height))
    if dpi < _DPI / 2 and path.suffix.lower() == ".png":
        warnings.warn(
            f"{path}: {len(figure.axes)} pictures of {width:.0f} x {height:.0f} inches, drawn at "
            f"{dpi:.0f} dots an inch: a .pdf or .svg is sharp at any size",
            stacklevel=2,
        )
    with warnings.catch_warnings(), outputs.output(path) as file:
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # `fonts` has warned
        figure.savefig(file, dpi=dpi, format=path.suffix.lower()[1:])


def check_path(path: Path) -> None:
    """Refuse a name without a known suffix, and a folder that does not exist."""
    if path.suffix.lower() not in FORMATS:
        raise ToolkitError(f"{path}: expected a name that ends in {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise ToolkitError(f"{path}: there is no folder {path.parent}")
    if path.is_dir():
        raise ToolkitError(f"{path}: expected a file, got a folder")


@contextmanager
def settings() -> Iterator[None]:
    """Draw without windows, by matplotlib's own defaults, whatever a matplotlibrc says."""
    os.environ["MPLBACKEND"] = "agg"  # importing matplotlib reads and checks its matplotlibrc
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # no paragraphs about wrong settings
    try:
        with needs_toolkit():
            import matplotlib
    except (ValueError, OSError) as error:  # for example, a matplotlibrc that is not text
        reason = " ".join(str(error).split())
        raise ToolkitError(f"matplotlib does not start: {reason} (see its matplotlibrc)") from error
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        yield


def figure_sized(
    width: float, height: float, layout: Literal["constrained"] | None = None
) -> Figure:
    """Return a figure of that many inches, which no window shows."""
    from matplotlib.figure import Figure  # pyplot, which opens windows, need not know of it

    return Figure(figsize=(width, height), layout=layout)


def _draw(ax: Axes, panel: _Panel, families: list[str], *, colorbar: bool = False) -> None:
    text: dict[str, Any] = {**PLAIN, "fontfamily": families, "fontsize": "large"}
    image = ax.imshow(
        panel.picture.weights,
        cmap="Blues",
        vmin=0,
        vmax=1,
        aspect="auto",
        interpolation_stage="data",  # colours take four times the memory
    )
    for axis, side in ((ax.xaxis, panel.columns), (ax.yaxis, panel.rows)):
        texts = side.labels.texts
        axis.set_ticks(range(0, len(texts), side.every), texts[:: side.every], **text)
        if side.cell >= _FINEST:
            axis.set_ticks([i - 0.5 for i in range(1, len(texts))], minor=True)
            axis.grid(which="minor", color=GREY)
        axis.set_tick_params(which="minor", length=0)
        axis.set_tick_params(which="major", length=0 if side.every == 1 else 3, color=GREY)
    ax.xaxis.tick_top()
    ax.xaxis.set_tick_params(rotation=0 if panel.columns.across else 90)
    ax.spines[:].set_color(GREY)
    _draw_spans(ax, panel, text)
    if panel.title:
        ax.set_xlabel(panel.title, **text)
    if colorbar:
        height = max(panel.rows.length, 1.5)
        ax.figure.colorbar(image, ax=ax, label="attention weight", aspect=height / _BAR)


def _draw_spans(ax: Axes, panel: _Panel, text: dict[str, Any]) -> None:
    """Draw a line beside labels that belong together, and the letter or syllable they make."""
    from matplotlib.lines import Line2D
    from matplotlib.transforms import ScaledTranslation

    up, out = panel.high - 0.05, panel.wide - 0.1
    inches = ax.figure.dpi_scale_trans
    above = ax.get_xaxis_transform() + ScaledTranslation(0, up, inches)
    aside = ax.get_yaxis_transform() + ScaledTranslation(-out, 0, inches)
    line: dict[str, Any] = {"color": "0.5", "linewidth": 1, "clip_on": False}
    for first, last, whole in panel.columns.spans:
        ax.add_artist(Line2D([first - 0.3, last + 0.3], [1, 1], transform=above, **line))
        ax.text((first + last) / 2, 1, whole, va="bottom", ha="center", transform=above, **text)
    for first, last, whole in panel.rows.spans:
        ax.add_artist(Line2D([0, 0], [first - 0.3, last + 0.3], transform=aside, **line))
        ax.text(
            0, (first + last) / 2, f"{whole} ", va="center", ha="right", transform=aside, **text
        )


def _panels(pictures: Sequence[Alignment], titles: Sequence[str]) -> list[_Panel]:
    """Return the alignments with labels, in cells of one size that bounds the largest."""
    checked = [_picture(picture, None, None) for picture in pictures]
    width, height = (
        min(_CELL, _LONGEST / max(len(getattr(picture, side)) for picture in checked))
        for side in ("source", "target")
    )
    return [
        _Panel(
            picture,
            _Side(labels.of(picture.source), width, math.ceil(_LINE / width)),
            _Side(labels.of(picture.target), height, math.ceil(_LINE / height)),
            labels.shown(title),
        )
        for picture, title in zip(checked, titles, strict=True)
    ]


def _texts(panel: _Panel) -> list[str]:
    sides = (panel.columns, panel.rows)
    spans = [whole for side in sides for *_, whole in side.spans]
    return [*panel.columns.labels.texts, *panel.rows.labels.texts, *spans, panel.title]


def _picture(weights: Any, source: Sequence[str] | None, target: Sequence[str] | None) -> Picture:
    """Return the arguments of `plot_alignment`, put in order and checked."""
    if hasattr(weights, "weights"):
        source = weights.source if source is None else source
        target = weights.target if target is None else target
        weights = weights.weights
    if hasattr(weights, "detach"):  # a tensor on any device
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
