"""Time additive attention beside its eager formula, torch.compile of it, and dot-product attention.

    python benchmarks/additive.py [--parts rate time memory] [--sizes 64,50,50,512 ...] [--runs 5]
                                  [--quick] [--json FILE]

Results are compared with float64 before anything is timed. Figures are medians of interleaved
runs, at least five: `eager` and `compile` say how many times longer than luong those take, `dot`
how many times longer than scaled_dot_product_attention luong takes; the target stands beside.
"score" is only the score, "whole" is score, softmax and context. From a prepared memory, "step
score" is the score of a projected query, "step" is a decoder step with its projection: forward, one
step; with backward, a loop of 50 and what it prepares, by step.
The full run needs 8 GiB of memory and takes about ten minutes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import luong
import memory
from additive_formulas import (
    Contest,
    Size,
    compiled,
    differentiate,
    dot,
    eager,
    eager_score,
    eager_steps,
    inputs,
    our_steps,
    ours,
    verify,
)
from luong.kernels import additive
from rate import fractions, rates, report
from timing import Call, both, check, describe, forward, machine, medians, say

HEAD = f"\n{'batch,n,m,d':17}{'what':11}{'pass':19}{'luong':>12} {'e9/s':>6}{'rate':>6}" + (
    "".join(f"{name:>9}{' (target)':13}" for name in ("eager", "compile", "dot")) + "runs"
)
PASSES = ("forward", "forward + backward")
STEPS = 50
TARGETS: dict[Size, dict[str, tuple[int, int]]] = {  # eager over ours, by pass
    (64, 50, 50, 512): {"score": (80, 50), "whole": (50, 40)},
    (8, 256, 256, 512): {"score": (105, 70), "whole": (90, 60)},
    (2, 1024, 1024, 256): {"score": (180, 90), "whole": (130, 85)},
    (64, 1, 50, 512): {"step score": (25, 10), "step": (7, 5), "score": (25, 10), "whole": (7, 5)},
}
COMPILE_TARGETS = (10, 10)  # compiled over ours, whole attention
DOT_TARGETS = (1.6, 1.3)  # ours over scaled_dot_product_attention, whole attention
Row = dict[str, Any]


def calls(contest: Contest, shape: tuple[int, ...], index: int) -> dict[str, Call]:
    """Each contestant's call: forward (index 0), or with backward from a dense gradient."""
    if index == 0:
        return {name: forward(function, tensors) for name, (function, tensors) in contest.items()}
    torch.manual_seed(2)
    grad = torch.randn(shape)
    return {name: both(function, tensors, grad) for name, (function, tensors) in contest.items()}


def row(size: Size, what: str, index: int, times: dict[str, float], runs: int, steps: int) -> Row:
    """Figures of one contest, in ratios, with the targets."""
    batch, n, m, d = size
    mine = times["ours"] / steps
    found: Row = {
        "size": size,
        "what": what,
        "pass": PASSES[index],
        "runs": runs,
        "seconds": {name: value / steps for name, value in times.items()},
        "elements per second": batch * n * m * d / mine,
        "ratios": {},
    }
    goals: dict[str, float | None]
    goals = {"eager": TARGETS.get(size, {}).get(what, (None, None))[index]}
    if what == "whole" and n > 1 and size in TARGETS:
        goals |= {"compile": COMPILE_TARGETS[index], "dot": DOT_TARGETS[index]}
    for name in ("eager", "compile", "dot"):
        if name in times:
            ratio = times[name] / times["ours"]
            ratio = 1 / ratio if name == "dot" else ratio
            goal = goals.get(name)
            met = None if goal is None else ratio <= goal if name == "dot" else ratio >= goal
            found["ratios"][name] = {"ratio": ratio, "target": goal, "met": met}
    return found


def score_contest(size: Size) -> Contest:
    query, key, _, v = inputs(size)
    return {
        "ours": (luong.additive_score, [query, key, v]),
        "eager": (eager_score, [query, key, v]),
    }


def whole_contest(size: Size) -> Contest:
    tensors = inputs(size)
    contest: Contest
    contest = {"ours": (ours, tensors), "eager": (eager, tensors), "dot": (dot, tensors[:3])}
    fused, reason = compiled(eager)
    if fused is None:
        say(f"torch.compile is skipped: {reason}")
    else:
        contest["compile"] = (fused, tensors)
    return contest


def time_size(size: Size, runs: int, show: Callable[[Row], None]) -> None:
    """The score only, and whole attention, forward and with backward."""
    batch, n, m, d = size
    verify(size)
    for what, contest, shape in (
        ("score", score_contest(size), (batch, n, m)),
        ("whole", whole_contest(size), (batch, n, d)),
    ):
        for index in (0, 1):
            ready = calls(contest, shape, index)
            if "compile" in ready:
                ready["compile"]()
            show(row(size, what, index, medians(ready, runs), runs, steps=1))


def time_steps(size: Size, runs: int, show: Callable[[Row], None]) -> None:
    """Decoder steps from a prepared memory, against the eager formula on keys projected once."""
    batch, _, m, d = size
    torch.manual_seed(0)
    score = luong.Concat(d, d, d)
    attention, weight, v = luong.Attention(score), score.weight, score.v
    key, value = (torch.randn(batch, m, d, requires_grad=True) for _ in range(2))
    queries = torch.randn(STEPS, batch, 1, d, requires_grad=True)

    def mine(queries: Tensor, key: Tensor, value: Tensor, *_: Tensor) -> Tensor:
        return our_steps(attention, queries, key, value)

    tensors = [queries, key, value, weight, v]
    check_steps(attention, tensors)
    with torch.no_grad():
        prepared, projected = attention.prepare(key, value), key @ weight[:, d:].mT
        query = queries[0] @ weight[:, :d].mT
    time_step_score(size, [query, projected, v], prepared, runs, show)
    one: Contest = {
        "ours": (lambda query: attention.attend(query, prepared).context, [queries[0]]),
        "eager": (lambda query: eager(query @ weight[:, :d].mT, projected, value, v), [queries[0]]),
    }
    show(row(size, "step", 0, medians(calls(one, (), 0), runs), runs, steps=1))
    loop: Contest = {"ours": (mine, tensors), "eager": (eager_steps, tensors)}
    ready = calls(loop, queries.shape, 1)
    show(row(size, "step", 1, medians(ready, runs), runs, steps=STEPS))


def time_step_score(
    size: Size, tensors: list[Tensor], prepared: Any, runs: int, show: Callable[[Row], None]
) -> None:
    """The score of a projected query, and nothing else, by the kernel that `attend` calls."""
    terms = prepared.prepared.key_terms
    tensors = [x.detach().requires_grad_() for x in tensors]

    def mine(query: Tensor, key: Tensor, v: Tensor) -> Tensor:
        return additive.scores(query, key, v, backend=None, terms=terms)

    found = differentiate(mine, tensors), differentiate(eager_score, tensors)
    check("step score", *found, differentiate(eager_score, [x.double() for x in tensors]), 1e-5)
    contest = {"ours": (mine, tensors), "eager": (eager_score, tensors)}
    for index in (0, 1):
        ready = calls(contest, found[0][0].shape, index)
        show(row(size, "step score", index, medians(ready, runs), runs, steps=1))


def check_steps(attention: luong.Attention, tensors: list[Tensor]) -> None:
    """A short loop, against float64."""
    few = [tensors[0][:3, :2], tensors[1][:2], tensors[2][:2]]
    mine = differentiate(lambda *x: our_steps(attention, *x), few)
    few += tensors[3:]
    theirs = differentiate(eager_steps, few)
    exact = differentiate(eager_steps, [x.detach().double() for x in few])
    check("steps", mine, theirs[: len(mine)], exact[: len(mine)], slack=1e-5)


def line(found: Row) -> str:
    """A row of the table."""
    text = f"{','.join(map(str, found['size'])):17}{found['what']:11}{found['pass']:19}"
    text += f"{found['seconds']['ours'] * 1e3:9.3f} ms {found['elements per second'] / 1e9:6.2f}"
    share = found.get("share of rates")
    text += f"{share[0]:6.0%}" if share else f"{'':6}"
    for name, unit in (("eager", "x"), ("compile", "x"), ("dot", "")):
        ratio = found["ratios"].get(name)
        if ratio is None:
            text += f"{'-':>9}{'':13}"
            continue
        verdict = ""
        if ratio["target"] is not None:
            verdict = f"({ratio['target']:g}: {'met' if ratio['met'] else 'NOT met'})"
        text += f"{ratio['ratio']:8.2f}{unit or ' '} {verdict:12}"
    return f"{text}{found['runs']:3}".rstrip()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = ("rate", "time", "memory")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--sizes", nargs="+", help="batch,n,m,d", default=list(TARGETS))
    parser.add_argument("--runs", type=int, default=5, help="at least 5")
    parser.add_argument("--quick", action="store_true", help="2 runs, a small memory measurement")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.runs = 2
    elif arguments.runs < 5:
        parser.error("--runs: expected at least 5, or --quick")
    arguments.sizes = [
        size if isinstance(size, tuple) else tuple(map(int, size.split(",")))
        for size in arguments.sizes
    ]
    return arguments


def main() -> None:
    arguments = parse()
    say(describe())
    result: dict[str, Any] = {"machine": machine(), "rows": []}
    if "rate" in arguments.parts:
        result["rates per second"] = rates()
        report(result["rates per second"])

    def show(found: Row) -> None:
        if "rates per second" in result and "score" in found["what"]:
            share = fractions(
                found["elements per second"], found["pass"], result["rates per second"]
            )
            found["share of rates"] = share
        result["rows"].append(found)
        say(line(found))

    if "time" in arguments.parts:
        say(HEAD)
        for size in arguments.sizes:
            time_size(size, arguments.runs, show)
            if size[1] == 1:
                time_steps(size, arguments.runs, show)
    if "memory" in arguments.parts:
        say()
        result["memory"] = memory.table(2048 if arguments.quick else 16384)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
