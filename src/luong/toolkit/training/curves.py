"""Training curves as a picture."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

from luong.toolkit.errors import ToolkitError
from luong.toolkit.inference import labels
from luong.toolkit.inference.pictures import GREY, PLAIN, figure_sized
from luong.toolkit.training import metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WORDS = {"train", "dev", "loss", "learning", "rate", "exact", "perplexity", "tokens"}
_NO_CURVES = ("seconds", "epoch")
_MANY = 2000  # points of a line that are not marked, and are dots in any format
_LARGEST = 1e30  # larger numbers overflow matplotlib's axes


def draw(path: Path) -> Figure:
    """Draw the columns of a run's `metrics.csv` against its updates; train and dev share axes."""
    table = _numbers(path)
    updates = table.pop("update")
    panels: dict[str, list[str]] = {}
    for name in table:
        panels.setdefault(re.sub("^(train|dev)_", "", name), []).append(name)
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    many = len(updates) > _MANY
    figure = figure_sized(4.2 * columns, 3.2 * rows, layout="constrained")
    for k, (title, names) in enumerate(panels.items()):
        ax = figure.add_subplot(rows, columns, k + 1)
        for name in names:
            (line,) = ax.plot(updates, table[name], label=_readable(name), rasterized=many)
            line.set(marker="" if many else "o", markersize=3)
        ax.set_xlabel("update")
        ax.set_ylabel(_readable(title if len(names) > 1 else names[0]), **PLAIN)
        ax.grid(color=GREY)
        ax.spines[["top", "right"]].set_visible(False)
        if len(names) > 1:
            for text in ax.legend(frameon=False).get_texts():
                text.set(**PLAIN)
    return figure


def _numbers(path: Path) -> dict[str, list[float]]:
    """Return `update` and the columns to draw; numbers out of bounds become NaN."""
    table = {
        name: [x if abs(x) < _LARGEST else math.nan for x in column]
        for name, column in metrics.read(path).items()
        if name not in _NO_CURVES
    }
    if len(table) < 2 or not table.get("update"):
        raise ToolkitError(f"{path}: no curves in it: expected a column `update`, and others")
    return table


def _readable(name: str) -> str:
    """Return the name of a column as people write it: `dev_per` as `dev PER`."""
    words = labels.shown(name).split("_")
    return " ".join(word if word in _WORDS else word.upper() for word in words)
