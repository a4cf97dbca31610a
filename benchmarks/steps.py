"""Time decoder steps from a prepared memory beside the plain formula in PyTorch, as ratios.

    python benchmarks/steps.py [--sizes 64,1,20,256 ...] [--runs 9] [--json FILE]

The formula gets keys projected once and a mask made once, as anybody would write it: for dot and
general two bmm, a masked_fill and a softmax; for concat the tanh of all sums, times v, instead of
the first bmm. Both get the same query, lengths and parameters. Results are compared with float64
before anything is timed. A row is the median of interleaved runs; a ratio below 1 means that luong
is the faster. "backward" is a loop of 20 steps with what they prepare, and the gradients of
queries, keys, values and parameters, by step.
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
from timing import check, describe, machine, medians, say

STEPS = 20  # of a loop
SIZES = [  # batch, n, m, d
    (1, 1, 5, 32),
    (1, 1, 20, 256),
    (8, 1, 20, 64),
    (1, 5, 20, 256),
    (64, 1, 20, 256),
    (64, 1, 50, 512),
    (256, 1, 200, 1024),
]
Formula = Callable[
    [Tensor, Tensor, Tensor, Tensor], Tensor
]  # query, key as prepared, value, hidden
Size = tuple[int, int, int, int]


def scores(d: int) -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "dot": luong.Dot(),
        "scaled dot": luong.ScaledDot(),
        "general": luong.General(d, d),
        "concat": luong.Concat(d, d, d),
    }


def formula(score: Any) -> Formula:
    """The attention of a score, in the fewest operations of PyTorch."""

    def attend(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor) -> Tensor:
        if isinstance(score, luong.Concat):
            weight, v = score.weight.to(query.dtype), score.v.to(query.dtype)
            query = query @ weight[:, : query.shape[-1]].mT
            found = torch.tanh(query[:, :, None] + key[:, None]) @ v
        else:
            found = torch.bmm(query, key.mT)
            if isinstance(score, luong.ScaledDot):
                found = found * query.shape[-1] ** -0.5
        weights = torch.softmax(found.masked_fill(hidden, float("-inf")), -1)
        return torch.bmm(weights, value)

    return attend


def projected(score: Any, key: Tensor) -> Tensor:
    """The keys as the formula wants them, once for all steps."""
    if isinstance(score, luong.General):
        return key @ score.weight.to(key.dtype)
    if isinstance(score, luong.Concat):
        return key @ score.weight[:, score.query_size :].mT.to(key.dtype)
    return key


def contest(size: Size, score: Any, backward: bool) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Our step and the formula's, or loops of them with backward, which are checked to agree."""
    batch, n, m, d = size
    torch.manual_seed(1)
    queries = torch.randn(STEPS if backward else 1, batch, n, d)
    key, value, grad = torch.randn(batch, m, d), torch.randn(batch, m, d), torch.randn(batch, n, d)
    lengths = torch.randint(1, m + 1, (batch,))
    lengths[0] = m
    hidden = (torch.arange(m) >= lengths[:, None])[:, None]
    inputs = [x.requires_grad_(backward) for x in (queries, key, value)]
    inputs += list(score.parameters()) if backward else []
    attention, attend = luong.Attention(score).eval(), formula(score)
    with torch.no_grad():
        once = attention.prepare(key, value, lengths=lengths), projected(score, key)

    def loop(step: Callable[[Tensor], Tensor]) -> list[Tensor]:
        found = torch.stack([step(query) for query in queries])
        return [found, *torch.autograd.grad(found, inputs, grad.expand_as(found))]

    def ours() -> list[Tensor]:
        if backward:
            memory = attention.prepare(key, value, lengths=lengths)
            return loop(lambda query: attention.attend(query, memory).context)
        with torch.no_grad():
            return [attention.attend(queries[0], once[0]).context]

    def theirs() -> list[Tensor]:
        if backward:
            ready = projected(score, key)
            return loop(lambda query: attend(query, ready, value, hidden))
        with torch.no_grad():
            return [attend(queries[0], once[1], value, hidden)]

    with torch.no_grad():
        many = queries.double(), projected(score, key.double()), value.double()
        exact = torch.stack([attend(query, *many[1:], hidden) for query in many[0]])
    results = ours(), theirs()
    first = [x[0] if backward else x[0][None] for x in results]
    check(f"{size} {type(score).__name__}", first[:1], first[1:], [exact], slack=1e-5)
    for mine, other in zip(*results, strict=True):
        bound = 1e-3 * float(other.detach().abs().max())
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=bound)
    return ours, theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", help="batch,n,m,d", default=SIZES)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--json", type=Path, help="a file for all figures")
    arguments = parser.parse_args()
    say(describe())
    say(f"\n{'batch,n,m,d':16}{'score':12}{'pass':10}{'luong':>12}{'formula':>12}{'ratio':>8}")
    rows = []
    for given in arguments.sizes:
        size: Size = given if isinstance(given, tuple) else tuple(map(int, given.split(",")))  # type: ignore[assignment]
        for name, score in scores(size[3]).items():
            for backward in (False, True):
                ours, theirs = contest(size, score, backward)
                times = medians({"ours": ours, "theirs": theirs}, arguments.runs, least=2e-2)
                times = {who: t / (STEPS if backward else 1) for who, t in times.items()}
                row = {"size": size, "score": name, "backward": backward, "seconds": times}
                rows.append(row)
                mine, other = times["ours"], times["theirs"]
                what = "backward" if backward else "forward"
                say(
                    f"{','.join(map(str, size)):16}{name:12}{what:10}{mine * 1e6:9.1f} us"
                    f"{other * 1e6:9.1f} us{mine / other:8.2f}"
                )
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
