"""Time the operators beside PyTorch's scaled_dot_product_attention, as ratios in one run.

    python benchmarks/dot.py [--runs 15] [--json FILE]

Results are compared with float64 before anything is timed. Each row is the median of interleaved
runs; a ratio below 1 means that luong is the faster. General attention stands beside the same
projection followed by scaled_dot_product_attention. benchmarks/additive.py is for additive
attention.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

import luong
from timing import Function, both, check, forward, machine, medians, say

SIZES = [  # batch, n, m, d
    (64, 50, 50, 512),
    (8, 256, 256, 512),
    (2, 1024, 1024, 256),
    (1, 4096, 4096, 64),
    (64, 10, 10, 64),
    (64, 10, 10, 512),
    (64, 1, 50, 512),
    (1, 1, 10, 64),
]


def rival(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None
) -> Tensor:
    """PyTorch's operator, in the shape that its fused kernel takes; hidden keys zeroed as ours."""
    if mask is not None:
        used = mask.any(-2)[..., None]
        key, value = key.where(used, 0), value.where(used, 0)
        mask = mask[:, None]
    return F.scaled_dot_product_attention(
        query[:, None], key[:, None], value[:, None], attn_mask=mask, scale=scale
    )[:, 0]


def contests(
    weight: Tensor, lengths: Tensor | None, m: int
) -> dict[str, tuple[Function, Function]]:
    """Ours and theirs, by name."""
    mask = None if lengths is None else (torch.arange(m) < lengths[:, None])[:, None]

    def dot(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return luong.dot_attention(q, k, v, lengths=lengths).context

    def scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return luong.scaled_dot_attention(q, k, v, lengths=lengths).context

    def general(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return luong.general_attention(q, k, v, weight, lengths=lengths).context

    return {
        "dot": (dot, lambda q, k, v: rival(q, k, v, mask, 1.0)),
        "scaled dot": (scaled, lambda q, k, v: rival(q, k, v, mask, None)),
        "general": (general, lambda q, k, v: rival(q @ weight.mT, k, v, mask, 1.0)),
    }


def ratio(
    ours: Function, theirs: Function, tensors: list[Tensor], grad: Tensor | None, runs: int
) -> tuple[float, float]:
    """Median seconds of ours, and those over theirs."""
    calls = {
        name: forward(function, tensors) if grad is None else both(function, tensors, grad)
        for name, function in (("ours", ours), ("theirs", theirs))
    }
    times = medians(calls, runs)
    return times["ours"], times["ours"] / times["theirs"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--json", type=Path, help="a file for all figures")
    arguments = parser.parse_args()
    rows = []
    say(f"{'operator':12}{'batch, n, m, d':22}{'lengths':9}forward          with backward")
    for batch, n, m, d in SIZES:
        torch.manual_seed(0)
        tensors = [torch.randn(batch, rows, d, requires_grad=True) for rows in (n, m, m)]
        weight, grad = torch.randn(d, d) / d, torch.randn(batch, n, d)
        for lengths in (None, torch.randint(m // 2, m + 1, (batch,))):
            for name, (ours, theirs) in contests(weight, lengths, m).items():
                exact = contests(weight.double(), lengths, m)[name][1]
                truth = exact(*(x.double() for x in tensors))
                check(name, [ours(*tensors)], [theirs(*tensors)], [truth])
                once = ratio(ours, theirs, tensors, None, arguments.runs)
                twice = ratio(ours, theirs, tensors, grad, arguments.runs)
                rows.append((name, (batch, n, m, d), lengths is not None, once, twice))
                say(
                    f"{name:12}{(batch, n, m, d)!s:22}{'yes' if lengths is not None else '':9}"
                    f"{once[0] * 1e3:7.3f} ms {once[1]:5.2f}"
                    f"{twice[0] * 1e3:9.3f} ms {twice[1]:5.2f}"
                )
    if arguments.json:
        names = ("operator", "batch n m d", "lengths", "forward", "with backward")
        result = {
            "machine": machine(),
            "figures": "[median seconds of luong, ratio to scaled_dot_product_attention]",
            "rows": [dict(zip(names, row, strict=True)) for row in rows],
        }
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
