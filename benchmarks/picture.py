"""Draw the time of attention against length: ours, the eager formula, compiled, dot-product.

    python benchmarks/picture.py [--lengths 64 128 ...] [--runs 5] [--quick] [--again]
                                 [--out docs/additive.png] [--json docs/additive.json]

(1, length, length, 256), float32; each point is the median of interleaved runs, checked against
float64 before. The figures are kept in the JSON file, and a later call measures only what that
lacks (everything with --again). A line ends where its arrays no longer fit. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch

from additive_formulas import Contest, Size, compiled, dot, eager, inputs, ours, verify
from timing import both, describe, forward, machine, medians, say

ROOT = Path(__file__).parent.parent
LENGTHS = [64, 128, 256, 512, 1024, 2048, 4096]
WIDTH = 256
PASSES = ("forward", "forward + backward")
ARRAYS = {  # of n x m x d, at once; found by measuring
    ("eager", "forward"): 2,
    ("eager", "forward + backward"): 3,
    ("compile", "forward + backward"): 2,
}
LINES = {  # label, colour, width
    "eager": ("additive, the eager formula", "#9a9a9a", 1.8),
    "compile": ("additive, torch.compile of it", "#d08a2e", 1.8),
    "ours": ("additive, luong", "#b3123f", 3.0),
    "dot": ("dot product, PyTorch's kernel", "#2f5d8a", 1.8),
}


def fits(who: str, name: str, length: int) -> bool:
    """Whether the arrays of n x m x d that a contestant needs have room in memory."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):
        memory = 16 << 30
    return ARRAYS.get((who, name), 0) * 4 * length**2 * WIDTH < 0.7 * memory


def contest(length: int, name: str) -> Contest:
    """Whoever can be timed at this length."""
    tensors = inputs((1, length, length, WIDTH))
    found: Contest
    found = {"ours": (ours, tensors), "dot": (dot, tensors[:3]), "eager": (eager, tensors)}
    fused, reason = compiled(eager)
    if fused is None:
        say(f"torch.compile is skipped: {reason}")
    else:
        found["compile"] = (fused, tensors)
    return {who: one for who, one in found.items() if fits(who, name, length)}


def measure(length: int, name: str, runs: int) -> dict[str, float]:
    """Median seconds by contestant."""
    grad = torch.randn(1, length, WIDTH)
    calls = {
        who: forward(function, tensors) if name == "forward" else both(function, tensors, grad)
        for who, (function, tensors) in contest(length, name).items()
    }
    if "compile" in calls:
        calls["compile"]()
    times = medians(calls, runs)
    shown = ", ".join(f"{who} {value * 1e3:.3f} ms" for who, value in times.items())
    say(f"{length:5} {name:19} {shown}")
    return times


def draw(points: dict[str, Any], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4.6), sharey=True, layout="constrained")
    for panel, name in zip(panels, PASSES, strict=True):
        for who, (label, colour, width) in LINES.items():
            known = [(int(n), t[name][who]) for n, t in points.items() if who in t.get(name, {})]
            if known:
                x, y = zip(*sorted(known), strict=True)
                panel.plot(x, y, "o-", color=colour, lw=width, ms=width + 2, label=label)
        decorate(panel, name, sorted(map(int, points)))
        compare(panel, {int(n): t[name] for n, t in points.items() if "eager" in t.get(name, {})})
    panels[0].set_ylabel("time of a call")
    lines = panels[0].get_legend_handles_labels()
    figure.legend(*lines, frameon=False, loc="outside lower center", ncols=4)
    figure.savefig(out, dpi=150)


def decorate(panel: Any, name: str, lengths: list[int]) -> None:
    """Log-log, with lengths and times that can be read."""
    panel.set(
        title=name, xscale="log", yscale="log", xlabel=f"n = m queries and keys of size {WIDTH}"
    )
    panel.set_xticks(lengths, [str(length) for length in lengths])
    panel.minorticks_off()
    ticks = {1e-5: "10 µs", 1e-4: "0.1 ms", 1e-3: "1 ms", 1e-2: "10 ms", 0.1: "0.1 s"}
    ticks |= {1.0: "1 s", 10.0: "10 s"}
    low, high = panel.get_ylim()
    shown = {t: label for t, label in ticks.items() if low <= t <= high}
    panel.set_yticks(list(shown), list(shown.values()))
    panel.grid(color="#e6e6e6", lw=0.8)
    panel.set_axisbelow(True)


def compare(panel: Any, times: dict[int, dict[str, float]]) -> None:
    """How many times longer the eager formula takes, at the greatest length that it reaches."""
    if not times:
        return
    length = max(times)
    low, high = times[length]["ours"], times[length]["eager"]
    arrow = {"arrowstyle": "<->", "color": "#555555", "shrinkA": 5, "shrinkB": 5}
    panel.annotate("", (length, low), (length, high), arrowprops=arrow)
    panel.annotate(
        f"{high / low:.0f} x",
        (length, (low * high) ** 0.5),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        color="#555555",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--runs", type=int, default=5, help="at least 5")
    parser.add_argument("--quick", action="store_true", help="2 runs")
    parser.add_argument("--again", action="store_true", help="measure what the file has, too")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/additive.png")
    parser.add_argument("--json", type=Path, default=ROOT / "docs/additive.json")
    arguments = parser.parse_args()
    if arguments.runs < 5 and not arguments.quick:
        parser.error("--runs: expected at least 5, or --quick")
    say(describe())
    known = json.loads(arguments.json.read_text()) if arguments.json.exists() else {"points": {}}
    for length in arguments.lengths:
        times = known["points"].setdefault(str(length), {})
        missing = [name for name in PASSES if arguments.again or name not in times]
        if missing:
            size: Size = (1, length, length, WIDTH)
            verify(size)
        for name in missing:
            times[name] = measure(length, name, 2 if arguments.quick else arguments.runs)
            known["machine"] = machine()
            arguments.json.write_text(json.dumps(known, indent=1) + "\n")
    draw(known["points"], arguments.out)


if __name__ == "__main__":
    main()
