r"""Draw the windows and Gaussians of local-p over the alignment of a word.

    luong train g2p-en --model.window local_p --model.half_width 3 --training.updates 1600 \
        --training.validate_every 1600 --out runs/local-p
    python examples/draw_window.py runs/local-p attention docs/window.png

Each row is an output symbol: the bar is its window, the curve its Gaussian around the predicted
position p_t (the dot), the shade of a cell its weight. Needs luong[toolkit].
"""

from __future__ import annotations

import sys

import matplotlib

matplotlib.use("Agg")

import numpy as np
import torch
from matplotlib import pyplot

import luong
from luong._window import KeyRange
from luong.seq2seq.model import END, START


class Watched(luong.Window):
    """A window that keeps the ranges of keys that it gave."""

    def __init__(self, window: luong.Window) -> None:
        super().__init__()
        self.window = window
        self.ranges: list[KeyRange] = []

    def key_range(
        self, query: torch.Tensor, position: torch.Tensor, length: torch.Tensor | int
    ) -> KeyRange:
        self.ranges.append(self.window.key_range(query, position, length))
        return self.ranges[-1]


def main(run: str, text: str, out: str) -> None:
    translator = luong.load(run)
    best = translator.translate([text])[0]
    source = torch.tensor(translator.source.encode([text]))
    symbols = translator.target.encode([best.text])[0]
    model = translator.model
    attention = model.decoder.attention
    if not isinstance(attention.window, luong.LocalPredictive):
        raise SystemExit(f"{run}: expected a model with the window local_p")
    watched = attention.window = Watched(attention.window)
    with torch.no_grad():
        memory, state = model.encode(source, torch.tensor([source.shape[1] - 1]))
        previous = torch.tensor([[START, *(s for s in symbols if s != END)]])
        weights = model.decoder(previous, state, memory, need_weights=True).weights[0]
    attention.window = watched.window
    draw(best.source, best.target, weights.numpy(), watched.ranges[0], out)


def draw(
    columns: list[str], rows: list[str], weights: np.ndarray, keys: KeyRange, out: str
) -> None:
    n, m = len(rows), len(columns)
    gaussian = keys.gaussian
    assert gaussian is not None  # local-p has one
    figure, axes = pyplot.subplots(figsize=(0.62 * m + 1.4, 0.62 * n + 1.0), layout="constrained")
    image = axes.imshow(weights[:n], cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for i in range(n):
        first, last = int(keys.first[0, i]), int(keys.last[0, i])
        centre, sigma = float(gaussian.centre[0, i]), gaussian.sigma
        left, right = max(first, 0) - 0.5, last + 0.5
        axes.fill_between(
            [left, right], i - 0.46, i + 0.46, facecolor="none", edgecolor="#b3123f", lw=1.4
        )
        x = np.linspace(left, right, 200)
        axes.plot(x, i + 0.44 - 0.8 * np.exp(-0.5 * ((x - centre) / sigma) ** 2), color="#d08a2e")
        axes.plot(centre, i + 0.44, "o", color="#d08a2e", ms=5, clip_on=False)
    axes.set_xticks(range(m), columns, parse_math=False)
    axes.set_yticks(range(n), rows, parse_math=False)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize="large")
    axes.spines[:].set_color("0.85")
    figure.colorbar(image, ax=axes, label="attention weight")
    figure.savefig(out, dpi=150)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(f"usage: python {sys.argv[0]} RUN TEXT OUT")
    main(*sys.argv[1:])
