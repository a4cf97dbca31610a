"""Time local-p attention against length, beside the same windows cut out of dense scores.

    python benchmarks/local.py [--lengths 512 2048 8192] [--runs 5] [--quick]
                               [--out docs/local.png] [--json docs/local.json]

(1, length, length, 256), float32, D = 10, general score, predictor of 128 units. Contestants:
luong by its numba and by its torch backend; the same projection, predictor, mask and Gaussian on
all n x m scores; and PyTorch's FlexAttention with the window as a block mask, where it runs
(forward only: it has no backward pass on the CPU; it renormalises, and stands beside ours that
does). Results are checked against float64 before anything is timed; each figure is the median of
interleaved runs. Peak memory beyond inputs and outputs is measured in processes of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import luong
import memory
from luong.kernels import dispatch
from timing import Call, Function, both, check, describe, forward, machine, medians, say

ROOT = Path(__file__).parent.parent
LENGTHS = [512, 2048, 8192]
WIDTH, HIDDEN, D = 256, 128, 10
PASSES = ("forward", "forward + backward")
LINES = {  # label, colour, width
    "dense": ("all scores, then the window", "#9a9a9a", 1.8),
    "flex": ("FlexAttention", "#d08a2e", 1.8),
    "torch": ("luong, torch backend", "#2f5d8a", 2.2),
    "numba": ("luong, numba backend", "#b3123f", 3.0),
}


def inputs(length: int) -> list[Tensor]:
    """query, key, value and the parameters: general's W, the predictor's W and v."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, length, WIDTH)] * 3 + [(WIDTH, WIDTH), (HIDDEN, WIDTH), (HIDDEN,)]
    scales = [1.0, 1.0, 1.0, WIDTH**-0.75, WIDTH**-0.5, 4 * HIDDEN**-0.5]
    return [
        (scale * torch.randn(shape, generator=generator)).requires_grad_()
        for shape, scale in zip(shapes, scales, strict=True)
    ]


def module(parameters: list[Tensor], renormalize: bool = False) -> luong.Attention:
    """Ours, with these parameters."""
    window = luong.LocalPredictive(WIDTH, HIDDEN, D, renormalize=renormalize)
    attention = luong.Attention(luong.General(WIDTH, WIDTH), window=window).to(parameters[0].dtype)
    for own, given in zip(attention.parameters(), parameters, strict=True):
        own.data.copy_(given.detach())
    return attention


def ours(backend: str, tensors: list[Tensor], renormalize: bool = False) -> Function:
    """A call by one of the backends."""
    attention = module(tensors[3:], renormalize)

    def call(query: Tensor, key: Tensor, value: Tensor, *_: Tensor) -> Tensor:
        with only(backend):
            return attention(query, key, value).context

    return call


@contextlib.contextmanager
def only(backend: str) -> Iterator[None]:
    known = dispatch.BACKENDS["windowed"]
    dispatch.BACKENDS["windowed"] = [one for one in known if one.name == backend]
    try:
        yield
    finally:
        dispatch.BACKENDS["windowed"] = known


def dense(
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor, w_p: Tensor, v_p: Tensor
) -> Tensor:
    """The formula on all scores."""
    n = key.shape[1]
    centre = n * torch.sigmoid(torch.tanh(query @ w_p.mT) @ v_p)[..., None]
    distance = torch.arange(n) - centre
    inside = (torch.arange(n) - centre.floor().clamp(max=n - 1)).abs() <= D
    scores = (query @ weight.mT) @ key.mT
    weights = torch.softmax(scores.masked_fill(~inside, float("-inf")), -1)
    return (weights * torch.exp(-2 * (distance / D) ** 2)) @ value


def flex(tensors: list[Tensor]) -> Function | None:
    """FlexAttention in the window, where it runs; the block mask is made outside the timing."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    query, key, _, _, w_p, v_p = tensors
    n = key.shape[1]
    centre = n * torch.sigmoid(torch.tanh(query[0] @ w_p.mT) @ v_p)
    middle = centre.long().clamp(max=n - 1)

    def inside(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (j - middle[i]).abs() <= D

    def gaussian(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        distance = (j - centre[i]) / D
        return score - 2 * distance * distance

    compiled = torch.compile(flex_attention)
    try:
        blocks = create_block_mask(inside, 1, 1, n, n, device="cpu")

        def call(query: Tensor, key: Tensor, value: Tensor, weight: Tensor, *_: Tensor) -> Tensor:
            query = query @ weight.mT
            return compiled(
                query[:, None],
                key[:, None],
                value[:, None],
                score_mod=gaussian,
                block_mask=blocks,
                scale=1.0,
            )[:, 0]

        with torch.no_grad():
            call(*tensors)
    except Exception as error:  # whatever the compiler of a machine may say
        say(f"FlexAttention is skipped: {str(error).splitlines()[0][:120]}")
        return None
    return call


def verify(length: int, tensors: list[Tensor]) -> None:
    """Context and all gradients of both backends, as near to float64 as the dense formula's."""
    grad = torch.randn(1, length, WIDTH)

    def results(function: Function, leaves: list[Tensor], given: Tensor, extra: Any) -> Any:
        context = function(*leaves)
        return [context, *torch.autograd.grad(context, [*leaves[:3], *extra], given)]

    wide = [x.detach().double().requires_grad_() for x in tensors]
    exact = results(dense, wide, grad.double(), wide[3:])
    theirs = results(dense, tensors, grad, tensors[3:])
    for backend in ("numba", "torch"):
        attention = module(tensors[3:])
        with only(backend):
            mine = results(
                lambda q, k, v, *_, a=attention: a(q, k, v).context,
                tensors,
                grad,
                list(attention.parameters()),
            )
        check(backend, mine, theirs, exact, slack=1e-5)


def measure(length: int, runs: int) -> dict[str, dict[str, float]]:
    """Median seconds by pass and contestant."""
    tensors = inputs(length)
    if length <= 2048:
        verify(length, tensors)
    grad = torch.randn(1, length, WIDTH)
    found = {name: ours(name, tensors) for name in ("numba", "torch")} | {"dense": dense}
    times = {}
    for name in PASSES:
        calls: dict[str, Call] = {}
        for who, function in found.items():
            leaves = tensors if who == "dense" else tensors[:3]
            calls[who] = (
                forward(function, leaves) if name == "forward" else both(function, leaves, grad)
            )
        plain = [x.detach() for x in tensors]
        rival = flex(plain) if name == "forward" else None
        if rival is not None:
            with torch.no_grad():
                own = ours("numba", tensors, renormalize=True)(*tensors)
                check("FlexAttention", [rival(*plain)], [own], [own.double()], slack=1e-4)
            calls["flex"] = forward(rival, plain)
        times[name] = medians(calls, runs)
        shown = ", ".join(f"{who} {value * 1e3:.2f} ms" for who, value in times[name].items())
        say(f"{length:6} {name:19} {shown}")
    return times


def child(who: str, length: int) -> None:
    """Print the peak of forward and backward, beyond inputs and outputs, in bytes."""

    def run(n: int) -> int:
        tensors = inputs(n)
        function = dense if who == "dense" else ours(who, tensors)
        leaves = tensors if who == "dense" else tensors[:3]
        grad = torch.randn(1, n, WIDTH)
        before = memory._reset()
        context = function(*leaves)
        results = [context, *torch.autograd.grad(context, leaves, grad)]
        return memory._peak() - before - sum(x.nbytes for x in results)

    run(64)  # compiles, starts threads
    print(json.dumps(max(0, run(length))))


def peaks(lengths: list[int]) -> dict[str, dict[str, float]]:
    """MiB by length and contestant."""
    found: dict[str, dict[str, float]] = {}
    for length in lengths:
        for who in ("numba", "torch", "dense"):
            command = [sys.executable, __file__, "--child", who, "--lengths", str(length)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found.setdefault(str(length), {})[who] = json.loads(done.stdout) / memory.MIB
        shown = ", ".join(f"{who} {value:.0f} MiB" for who, value in found[str(length)].items())
        say(f"{length:6} {'memory':19} {shown}")
    return found


def verdicts(points: dict[str, Any]) -> None:
    """The targets: growth from 2048 to 8192, and ratios to dense at 8192."""
    if not {"2048", "8192"} <= set(points):
        return
    for name in PASSES:
        low, high = points["2048"][name], points["8192"][name]
        for who, least in (("numba", 20), ("torch", 8)):
            growth, ratio = high[who] / low[who], high["dense"] / high[who]
            say(
                f"{name}: {who} grows {growth:.1f} times from 2048 to 8192 (at most 4.8: "
                f"{'met' if growth <= 4.8 else 'NOT met'}); dense takes {ratio:.0f} times as long "
                f"at 8192 (at least {least}: {'met' if ratio >= least else 'NOT met'})"
            )


def draw(points: dict[str, Any], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from picture import decorate

    pyplot.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4.6), sharey=True, layout="constrained")
    for panel, name in zip(panels, PASSES, strict=True):
        for who, (label, colour, width) in LINES.items():
            known = [(int(n), t[name][who]) for n, t in points.items() if who in t[name]]
            if known:
                x, y = zip(*sorted(known), strict=True)
                panel.plot(x, y, "o-", color=colour, lw=width, ms=width + 2, label=label)
        decorate(panel, name, sorted(map(int, points)))
        panel.set_xlabel(f"n = m queries and keys of size {WIDTH}; D = {D}")
    panels[0].set_ylabel("time of a call")
    lines = panels[0].get_legend_handles_labels()
    figure.legend(*lines, frameon=False, loc="outside lower center", ncols=4)
    figure.savefig(out, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="2 runs")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/local.png")
    parser.add_argument("--json", type=Path, default=ROOT / "docs/local.json")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")  # of FlexAttention and inductor
    if arguments.child:
        child(arguments.child, arguments.lengths[0])
        return
    say(describe())
    runs = 2 if arguments.quick else arguments.runs
    points: dict[str, Any] = {str(n): measure(n, runs) for n in arguments.lengths}
    verdicts(points)
    known = {"machine": machine(), "points": points, "MiB": peaks(arguments.lengths)}
    arguments.json.write_text(json.dumps(known, indent=1) + "\n")
    draw(points, arguments.out)


if __name__ == "__main__":
    main()
