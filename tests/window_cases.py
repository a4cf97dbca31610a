"""Every score in every window on every backend."""

import itertools

import pytest
import torch

import windows
from operator_cases import Case, options
from operators import NAMED, REFERENCE_SCORES, windowed

BACKENDS = ("numba", "torch", "reference")
WINDOWS = {
    "local_m": windows.monotonic(1),
    "local_p": windows.predictive(1),
    "local_p_renormalized": windows.predictive(2, renormalize=True),
    "causal": windows.causal(),
}
POSITIONS = {
    "0": 0,
    "2": 2,
    "row": torch.tensor([[1], [-1], [4]]),
    "query": torch.tensor([[3, 0, 9, -9, 2], [0, 1, 2, 3, 4], [5, 5, -1, 1, 0]]),
}


def case_of(score, window, backend=None, sizes=NAMED):
    name = f"{score}-{backend}"
    return Case(name, sizes, "module", windowed(score, window, backend, sizes))


CASES = [
    pytest.param(case_of(score, window, backend), id=f"{score}-{name}-{backend}")
    for score, (name, window), backend in itertools.product(
        REFERENCE_SCORES, WINDOWS.items(), BACKENDS
    )
]
SOME = [x for x in CASES if any(x.id.startswith(f"{s}-") for s in ("dot", "concat_bias"))]
cases = pytest.mark.parametrize("case", CASES)
some = pytest.mark.parametrize("case", SOME)
backends = pytest.mark.parametrize("backend", BACKENDS)


def given_for(kind, position):
    return options(kind, NAMED.n, NAMED.m) | {"position": POSITIONS[position]}


def attention_of(case, dropout=0.0):
    module = case.attention(dropout).double()
    for parameter, x in zip(module.parameters(), case.inputs()[3:], strict=True):
        parameter.data.copy_(x)
    return module


def scatter(found, m):
    """Weights of the window as weights of all keys."""
    index = found.start[..., None] + torch.arange(found.weights.shape[-1])
    wide = found.weights.new_zeros(*found.weights.shape[:-1], m)
    return wide.scatter(-1, index, found.weights)
