"""The operators in one table, which the tests cross with masks, dtypes, shapes and transforms.

A `Formula` is an operator as it is written on paper, with the library's function, module and
reference for it. A `Case` is a formula called one way (function or module) at some sizes. Windows
are in it as modules only; test_windows.py crosses them with every score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

import luong
import windows
from luong import reference
from luong.kernels import dispatch
from rounding import assert_rounded


class Sizes(NamedTuple):
    n: int
    m: int
    d_q: int
    d_k: int
    d_v: int
    d_a: int


DENSE = Sizes(n=5, m=7, d_q=11, d_k=13, d_v=17, d_a=19)  # weights smaller than the inputs
FUSED = Sizes(n=11, m=13, d_q=5, d_k=3, d_v=3, d_a=2)  # and larger: PyTorch's fused kernel
TALL = Sizes(n=7, m=5, d_q=11, d_k=13, d_v=17, d_a=19)  # more queries than keys
TALL_FUSED = Sizes(n=13, m=11, d_q=3, d_k=5, d_v=3, d_a=2)
NAMED = Sizes(n=5, m=6, d_q=7, d_k=3, d_v=2, d_a=4)  # for backends that are asked for by name

Shapes = dict[str, tuple[int, ...]]


class Formula(NamedTuple):
    score: Callable[..., float]  # (q, k, j, *parameters): one query, and one key at position j
    scores: Callable[..., Tensor]  # luong's (query, key, *parameters)
    function: Callable[..., luong.Attended] | None  # luong's (query, key, value, *parameters, ...)
    reference: Callable[..., tuple[Tensor, Tensor]]  # the same of luong.reference
    reference_scores: Callable[..., Tensor] | None = None  # its scores; None: not within windows
    module: Callable[[Sizes], Any] | None = None  # what `Attention` takes as its score
    parameters: Callable[[Sizes], Shapes] = lambda s: {}
    widths: Callable[[Sizes], tuple[int, int]] = lambda s: (s.d_q, s.d_k)
    sizes: tuple[Sizes, ...] = (DENSE,)
    window: windows.Local | None = None
    backend: str | None = None  # of the window


def _square(s: Sizes) -> tuple[int, int]:
    return s.d_k, s.d_k


def _projected(s: Sizes) -> tuple[int, int]:
    return s.d_a, s.d_a


def _distance(query: Tensor, key: Tensor) -> Tensor:
    return -(query[..., :, None, :] - key[..., None, :, :]).square().sum(-1)


def _located(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    scores = luong.location_score(query, weight, length=key.shape[-2])
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    return scores.expand(*batch, *scores.shape[-2:])


def _scaled(inner: Callable[..., Tensor]) -> Callable[..., Any]:
    """Attention with scores g · inner(query, key, *parameters), from a plain function."""

    def function(query, key, value, g, *parameters, **options):
        def score(query, key):
            return g * inner(query, key, *parameters)

        return luong.attention(query, key, value, score=score, **options)

    return function


def _scaled_reference(inner: Callable[..., Tensor]) -> Callable[..., Any]:
    def function(query, key, value, g, *parameters, **options):
        def score(query, key):
            return g * inner(query, key, *parameters)

        return reference.attention(query, key, value, score, **options)

    return function


def _by(backend: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` by this backend, where it can take the call (under vmap it cannot)."""

    def call(*tensors, **options):
        masks = [x for x in options.values() if isinstance(x, Tensor)]
        reasons = luong.explain("additive", *tensors, *masks)[backend]
        return function(*tensors, backend=None if reasons else backend, **options)

    return call


def _g(inner: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda query, key, g, *parameters: g * inner(query, key, *parameters)


def _simplified(query: Tensor, key: Tensor, weight: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return reference.concat_score(query, key, weight, v, bias, simplified=True)


def _reference_location(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    return reference.location_score(query, weight, key.shape[-2])


FORMULAS = {
    "dot": Formula(
        score=lambda q, k, j: k @ q,
        scores=luong.dot_score,
        function=luong.dot_attention,
        reference=reference.dot_attention,
        reference_scores=reference.dot_score,
        module=lambda s: luong.Dot(),
        widths=_square,
        sizes=(DENSE, FUSED),
    ),
    "scaled_dot": Formula(
        score=lambda q, k, j: k @ q / math.sqrt(len(k)),
        scores=luong.scaled_dot_score,
        function=luong.scaled_dot_attention,
        reference=reference.scaled_dot_attention,
        reference_scores=reference.scaled_dot_score,
        module=lambda s: luong.ScaledDot(),
        widths=_square,
        sizes=(DENSE, FUSED),
    ),
    "scale": Formula(
        score=lambda q, k, j: k @ q * 0.7,
        scores=lambda q, k: luong.scaled_dot_score(q, k, scale=0.7),
        function=lambda *tensors, **o: luong.scaled_dot_attention(*tensors, scale=0.7, **o),
        reference=lambda q, k, x, **o: reference.scaled_dot_attention(q, k, x, scale=0.7, **o),
        module=lambda s: luong.ScaledDot(scale=0.7),
        widths=_square,
        sizes=(DENSE, FUSED),
    ),
    "general": Formula(
        score=lambda q, k, j, W: k @ W @ q,
        scores=luong.general_score,
        function=luong.general_attention,
        reference=reference.general_attention,
        reference_scores=reference.general_score,
        module=lambda s: luong.General(s.d_q, s.d_k),
        parameters=lambda s: {"weight": (s.d_k, s.d_q)},
        sizes=(DENSE, FUSED, TALL, TALL_FUSED),
    ),
    "concat": Formula(
        score=lambda q, k, j, W, v: v @ np.tanh(W @ np.concatenate([q, k])),
        scores=luong.concat_score,
        function=luong.concat_attention,
        reference=reference.concat_attention,
        reference_scores=reference.concat_score,
        module=lambda s: luong.Concat(s.d_q, s.d_k, s.d_a),
        parameters=lambda s: {"weight": (s.d_a, s.d_q + s.d_k), "v": (s.d_a,)},
    ),
    "concat_bias": Formula(
        score=lambda q, k, j, W, v, b: v @ np.tanh(W @ np.concatenate([q, k]) + b),
        scores=luong.concat_score,
        function=luong.concat_attention,
        reference=reference.concat_attention,
        reference_scores=reference.concat_score,
        module=lambda s: luong.Concat(s.d_q, s.d_k, s.d_a, bias=True),
        parameters=lambda s: {"weight": (s.d_a, s.d_q + s.d_k), "v": (s.d_a,), "bias": (s.d_a,)},
    ),
    "concat_simplified": Formula(
        score=lambda q, k, j, W, v, b: v @ np.tanh(W @ q + k + b),
        scores=lambda *tensors: luong.concat_score(*tensors, simplified=True),
        function=lambda *tensors, **o: luong.concat_attention(*tensors, simplified=True, **o),
        reference=lambda q, k, x, W, v, b, **o: reference.concat_attention(
            q, k, x, W, v, b, simplified=True, **o
        ),
        reference_scores=_simplified,
        module=lambda s: luong.Concat(s.d_q, s.d_a, s.d_a, bias=True, simplified=True),
        parameters=lambda s: {"weight": (s.d_a, s.d_q), "v": (s.d_a,), "bias": (s.d_a,)},
        widths=lambda s: (s.d_q, s.d_a),
    ),
    "additive": Formula(
        score=lambda q, k, j, v: v @ np.tanh(q + k),
        scores=luong.additive_score,
        function=luong.additive_attention,
        reference=reference.additive_attention,
        parameters=lambda s: {"v": (s.d_a,)},
        widths=_projected,
    ),
    "location": Formula(  # more positions than the table has
        score=lambda q, k, j, W: W[j] @ q if j < len(W) else -math.inf,
        scores=_located,
        function=lambda q, k, v, W, **o: luong.location_attention(q, v, W, **o),
        reference=lambda q, k, v, W, **o: reference.location_attention(q, v, W, **o),
        reference_scores=_reference_location,
        module=lambda s: luong.Location(s.d_q, s.m - 2),
        parameters=lambda s: {"weight": (s.m - 2, s.d_q)},
    ),
    "location_long": Formula(  # fewer
        score=lambda q, k, j, W: W[j] @ q,
        scores=_located,
        function=lambda q, k, v, W, **o: luong.location_attention(q, v, W, **o),
        reference=lambda q, k, v, W, **o: reference.location_attention(q, v, W, **o),
        reference_scores=_reference_location,
        module=lambda s: luong.Location(s.d_q, s.m + 4),
        parameters=lambda s: {"weight": (s.m + 4, s.d_q)},
    ),
    "distance": Formula(  # any function of queries and keys
        score=lambda q, k, j: -((q - k) ** 2).sum(),
        scores=_distance,
        function=lambda *tensors, **o: luong.attention(*tensors, score=_distance, **o),
        reference=lambda q, k, x, **o: reference.attention(q, k, x, _distance, **o),
        reference_scores=_distance,
        module=lambda s: _distance,
        widths=_square,
    ),
    "g_dot": Formula(
        score=lambda q, k, j, g: g * (k @ q),
        scores=lambda q, k, g: g * luong.dot_score(q, k),
        function=_scaled(luong.dot_score),
        reference=_scaled_reference(reference.dot_score),
        reference_scores=_g(reference.dot_score),
        module=lambda s: luong.Scaled(luong.Dot()),
        parameters=lambda s: {"gain": ()},
        widths=_square,
        sizes=(DENSE, FUSED),
    ),
    "g_general": Formula(
        score=lambda q, k, j, g, W: g * (k @ W @ q),
        scores=lambda q, k, g, W: g * luong.general_score(q, k, W),
        function=_scaled(luong.general_score),
        reference=_scaled_reference(reference.general_score),
        reference_scores=_g(reference.general_score),
        module=lambda s: luong.Scaled(luong.General(s.d_q, s.d_k)),
        parameters=lambda s: {"gain": (), "score.weight": (s.d_k, s.d_q)},
        sizes=(DENSE, FUSED, TALL),
    ),
    "g_concat": Formula(
        score=lambda q, k, j, g, W, v, b: g * (v @ np.tanh(W @ np.concatenate([q, k]) + b)),
        scores=lambda q, k, g, *rest: g * luong.concat_score(q, k, *rest),
        function=_scaled(luong.concat_score),
        reference=_scaled_reference(reference.concat_score),
        reference_scores=_g(reference.concat_score),
        module=lambda s: luong.Scaled(luong.Concat(s.d_q, s.d_k, s.d_a, bias=True)),
        parameters=lambda s: {
            "gain": (),
            "score.weight": (s.d_a, s.d_q + s.d_k),
            "score.v": (s.d_a,),
            "score.bias": (s.d_a,),
        },
    ),
    "g_g_location": Formula(  # two multipliers, one around the other
        score=lambda q, k, j, g, h, W: g * h * (W[j] @ q),
        scores=lambda q, k, g, h, W: g * h * _located(q, k, W),
        function=_scaled(lambda q, k, h, W: h * _located(q, k, W)),
        reference=_scaled_reference(
            lambda q, k, h, W: h * reference.location_score(q, W, k.shape[-2])
        ),
        reference_scores=_g(_g(_reference_location)),
        module=lambda s: luong.Scaled(luong.Scaled(luong.Location(s.d_q, s.m))),
        parameters=lambda s: {"gain": (), "score.gain": (), "score.score.weight": (s.m, s.d_q)},
    ),
}


for _backend in ("torch", "reference"):
    for _name in ("additive", "concat_bias"):
        _formula = FORMULAS[_name]
        FORMULAS[f"{_backend}-{_name}"] = _formula._replace(
            scores=_by(_backend, _formula.scores),
            function=_by(_backend, _formula.function),
            reference_scores=None,
            module=None,
            sizes=(NAMED,),
        )


REFERENCE_SCORES = {
    name: formula.reference_scores for name, formula in FORMULAS.items() if formula.reference_scores
}


def windowed(
    name: str, window: windows.Local, backend: str | None = None, sizes: Sizes = DENSE
) -> Formula:
    """The formula `name` within a window."""
    formula = FORMULAS[name]
    known = None
    if "location" in name:
        known = lambda *parameters: len(parameters[-1])  # noqa: E731
    return formula._replace(
        function=None,
        reference=window.reference(formula.reference_scores, known),
        sizes=(sizes,),
        window=window,
        backend=backend,
    )


FORMULAS |= {
    "dot_local_m": windowed("dot", windows.monotonic(2)),
    "general_local_p": windowed("general", windows.predictive(2)),
    "concat_bias_local_m": windowed("concat_bias", windows.monotonic(1)),
    "concat_local_p": windowed("concat", windows.predictive(2)),
    "location_local_p_renormalized": windowed("location", windows.predictive(2, True)),
    "distance_local_m": windowed("distance", windows.monotonic(2)),
    "g_general_local_p_renormalized": windowed("g_general", windows.predictive(2, True)),
    "dot_causal": windowed("dot", windows.causal()),
    "torch-general_local_p": windowed("general", windows.predictive(1), "torch", NAMED),
    "torch-concat_bias_local_m": windowed("concat_bias", windows.monotonic(2), "torch", NAMED),
    "reference-concat_local_p": windowed("concat", windows.predictive(1), "reference", NAMED),
}


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


def probe(x: Tensor) -> Tensor:
    """Fixed numbers of the shape of x, to make one number of many."""
    return torch.cos(torch.arange(x.numel(), dtype=torch.float64)).reshape(x.shape).to(x.dtype)


def combine(results: Sequence[Tensor | None]) -> Tensor:
    return reduce(add, [(x * probe(x)).sum() for x in results if x is not None])


def derivatives(
    call: Callable[..., Sequence[Tensor | None]],
    tensors: Sequence[Tensor],
    order: int = 1,
    **options: Any,
) -> list[Tensor]:
    """Results, the gradients of their combination, and so on up to `order`."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    level = [x for x in call(*leaves, **options) if x is not None]
    found = list(level)
    for i in range(order):
        level = [
            *torch.autograd.grad(
                combine(level),
                leaves,
                create_graph=i + 1 < order,
                allow_unused=True,
                materialize_grads=True,
            )
        ]
        found += level
    return [x.detach() for x in found]


def assert_near(actual: Tensor, expected: Tensor, tolerance: float = 1e-13) -> None:
    """Same shape and dtype, and within `tolerance` of the largest number expected."""
    bound = tolerance * float(expected.detach().abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=bound)


def assert_all_near(
    actual: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float = 1e-13
) -> None:
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert_near(one, other, tolerance)


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
