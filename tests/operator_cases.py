"""The formulas of operators.py at sizes, with the masks and lengths that the tests cross them with.

A `Case` is a formula called one way (function or module) at some sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call

import luong
import windows
from comparing import derivatives
from luong.kernels import dispatch
from operators import FORMULAS, FUSED, TALL_FUSED, Formula, Sizes
from rounding import assert_rounded


@contextmanager
def window_backend(name: str | None) -> Iterator[None]:
    """Windows by this backend, where it can take the call (under vmap it cannot)."""
    everything = dispatch.BACKENDS["windowed"]
    if name is not None:
        some = [each for each in everything if each.name in (name, "reference")]
        dispatch.BACKENDS["windowed"] = some
    try:
        yield
    finally:
        dispatch.BACKENDS["windowed"] = everything


class Case:
    """A formula at some sizes, as a function or as a module."""

    def __init__(self, name: str, sizes: Sizes, way: str, formula: Formula | None = None) -> None:
        self.formula, self.sizes, self.way = formula or FORMULAS[name], sizes, way
        self.window = self.formula.window
        self.name = f"{way}-{name}-n{sizes.n}m{sizes.m}"
        self.fused = sizes in (FUSED, TALL_FUSED) and not (way == "function" and name[:2] == "g_")
        self.looks_at_keys = "location" not in name
        self.jumps = self.window is not None and self.window.predictive  # at whole centres
        self.normalised = self.window is None or self.window.normalised
        self.parameters = {f"score.{k}": x for k, x in self.formula.parameters(sizes).items()}
        self.of_score = len(self.parameters)
        if self.window is not None:
            found = self.window.parameters(self.formula.widths(sizes)[0])
            self.parameters |= {f"window.{k}": x for k, x in found.items()}
        if way == "module":
            self.module = self.attention()

    def attention(self, dropout: float = 0.0) -> luong.Attention:
        """A new module."""
        assert self.formula.module is not None
        window = self.window and self.window.make(self.formula.widths(self.sizes)[0])
        return luong.Attention(self.formula.module(self.sizes), window=window, dropout=dropout)

    def at(self, position: int | Tensor) -> dict[str, Any]:
        """The option that tells a window where queries are that come without those before them."""
        return {} if self.window is None else {"position": position}

    def inputs(
        self,
        batch: Sequence[int] = (3,),
        key_batch: Sequence[int] | None = None,
        value_batch: Sequence[int] | None = None,
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
        **sizes: int,
    ) -> list[Tensor]:
        """query, key, value and the parameters, normal; `sizes` replaces n, m or d_v."""
        s = self.sizes._replace(**sizes)
        d_q, d_k = self.formula.widths(s)
        key_batch = batch if key_batch is None else key_batch
        value_batch = key_batch if value_batch is None else value_batch
        rows = ((*batch, s.n, d_q), (*key_batch, s.m, d_k), (*value_batch, s.m, s.d_v))
        generator = torch.Generator().manual_seed(seed)
        return [
            (0.6 * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)
            for shape in (*rows, *self.parameters.values())
        ]

    def call(self, query: Tensor, key: Tensor, value: Tensor, *parameters: Tensor, **options: Any):
        if self.way == "function":
            assert self.formula.function is not None
            return self.formula.function(query, key, value, *parameters, **options)
        named = dict(zip(self.parameters, parameters, strict=True))
        with window_backend(self.formula.backend):
            return functional_call(self.module, named, (query, key, value), options)

    def scores(self, query: Tensor, key: Tensor, *parameters: Tensor) -> Tensor:
        if self.way == "function":
            return self.formula.scores(query, key, *parameters)
        pairs = list(zip(self.parameters, parameters, strict=True))[: self.of_score]
        named = {name.removeprefix("score."): x for name, x in pairs}
        return functional_call(self.module.score, named, (query, key))

    def reference(self, *tensors: Tensor, need_weights: bool = False, **options: Any):
        return self.formula.reference(*tensors, **options)[: 2 if need_weights else 1]

    def oracle(
        self, *tensors: Tensor, position: int | Tensor = 0, **options: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Context and weights, pair by pair in float64, from the formula and nothing else."""
        query, key, value, *parameters = (x.detach().double().numpy() for x in tensors)
        of_score, of_window = parameters[: self.of_score], parameters[self.of_score :]
        pairs = attended(tensors, **options).numpy()
        *batch, n, m = pairs.shape
        query, key, value = (
            np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (query, key, value)
        )
        if not isinstance(position, Tensor):
            position = position + torch.arange(n)
        times = np.broadcast_to(position.numpy(), (*batch, n))
        lengths = np.broadcast_to(options.get("lengths", torch.tensor(m)).numpy(), batch)
        context, weights = np.zeros((*batch, n, value.shape[-1])), np.zeros(pairs.shape)
        for *b, i in np.ndindex(*batch, n):
            at, b = (*b, i), tuple(b)

            def score(j, at=at, b=b):
                return self.formula.score(query[at], key[b][j], j, *of_score)

            if self.window is None:
                found = windows.softmax({j: score(j) for j in range(m) if pairs[at][j]})
            else:
                where = (query[at], int(times[at]), int(lengths[b]))
                found = self.window.weights(score, pairs[at], *where, *of_window)
            for j, weight in found.items():
                weights[at][j] = weight
                context[at] += weight * value[b][j]
        return torch.from_numpy(context), torch.from_numpy(weights)


def attended(
    tensors: Sequence[Tensor], mask: Tensor | None = None, lengths: Tensor | None = None
) -> Tensor:
    """Which query may attend to which key: bool (*batch, n, m)."""
    query, key, value = tensors[:3]
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    pairs = torch.ones(*batch, query.shape[-2], key.shape[-2], dtype=torch.bool)
    if mask is not None:
        pairs = pairs & mask
    if lengths is not None:
        pairs = pairs & (torch.arange(key.shape[-2]) < lengths[..., None, None])
    return pairs


def hide(tensors: Sequence[Tensor], bad: float, **options: Tensor) -> list[Tensor]:
    """`bad` in all keys and values that no query attends to, and in queries without a key."""
    query, key, value, *parameters = tensors
    pairs = attended(tensors, **options)
    unused = ~pairs.any(-2)[..., None]
    query = query.masked_fill(~pairs.any(-1, keepdim=True), bad)
    return [query, key.masked_fill(unused, bad), value.masked_fill(unused, bad), *parameters]


def options(kind: str, n: int, m: int, batch: Sequence[int] = (3,)) -> dict[str, Tensor]:
    """The mask, the lengths, or both, of the kind `kind`."""
    generator = torch.Generator().manual_seed(1)

    def some(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator) < 0.6

    ones = [1] * len(batch)
    lengths = torch.arange(m, m - math.prod(batch), -1).clamp(min=1).reshape(tuple(batch))
    mask = some(*batch, n, m)
    mask[..., 0] = True
    if kind == "none":
        return {}
    if kind == "lengths":
        return {"lengths": lengths}
    if kind == "length_0":
        return {"lengths": lengths.masked_fill(lengths == m - 1, 0)}
    if kind == "mask":
        return {"mask": mask}
    if kind == "mask_1nm":
        return {"mask": some(*ones, n, m)}
    if kind == "mask_b1m":
        return {"mask": some(*batch, 1, m)}
    if kind == "mask_bn1":
        return {"mask": some(*batch, n, 1)}
    if kind == "both":
        return {"mask": mask, "lengths": lengths}
    if kind == "empty_row":
        mask[..., 1, :] = False
        return {"mask": mask}
    if kind == "empty_column":
        mask[..., 1] = False
        return {"mask": mask, "lengths": lengths.masked_fill(lengths == m - 1, 0)}
    assert kind == "nothing"
    return {"mask": torch.zeros_like(mask)}


KINDS = (
    "none",
    "lengths",
    "length_0",
    "mask",
    "mask_1nm",
    "mask_b1m",
    "mask_bn1",
    "both",
    "empty_row",
    "empty_column",
    "nothing",
)

CASES = [
    Case(name, sizes, way)
    for way in ("function", "module")
    for name, formula in FORMULAS.items()
    for sizes in formula.sizes
    if (formula.function if way == "function" else formula.module)
]
MODULES = [case for case in CASES if case.way == "module"]


def assert_case_rounded(
    case: Case,
    tensors: Sequence[Tensor],
    given: dict[str, Any],
    order: int = 1,
    call: Callable[..., Sequence[Tensor | None]] | None = None,
    factor: float = 1.0,
) -> None:
    """Hold results and derivatives of a case, or of another `call`, to the rule of rounding.py.

    `factor` is for the scale of all.
    """
    exact = derivatives(case.reference, [x.double() for x in tensors], order, **given)
    plain = derivatives(case.reference, tensors, order, **given)
    ours = derivatives(call or case.call, tensors, order, **given)
    assert all(x.dtype == tensors[0].dtype for x in ours)
    results = 2 if given.get("need_weights") else 1
    scales, steepest = [factor * x for x in exact[:results]], 0.0
    for start in range(results, len(exact), len(tensors)):  # derivatives: sums that cancel out,
        level = exact[start : start + len(tensors)]  # of products with the derivatives before
        steepest = max([steepest, *(x.abs().max().item() for x in level if x.numel())])
        scales += [torch.tensor(2 * factor * steepest)] * len(tensors)
    assert_rounded(ours, plain, exact, scales)


# where a key counts the same wherever it stands
EVERY_KEY = [case for case in CASES if case.looks_at_keys and case.window is None]

cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
kinds = pytest.mark.parametrize("kind", KINDS)


def masking(case: Case, kind: str, batch: tuple[int, ...] = (3,)) -> dict[str, torch.Tensor]:
    return options(kind, case.sizes.n, case.sizes.m, batch)
