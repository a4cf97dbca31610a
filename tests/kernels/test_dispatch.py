"""Which backend is taken, why, and what a choice that cannot be met says."""

import os
import subprocess
import sys

import pytest
import torch
from torch.func import vmap

import luong
from comparing import assert_near
from luong.kernels import dispatch
from luong.kernels.additive import blocks, compiled, operators, plain, windowed

Q, K, X, V = torch.ones(2, 3, 4), torch.ones(2, 5, 4), torch.ones(2, 5, 6), torch.ones(4)
ENTRIES = {
    "additive_score": lambda **o: luong.additive_score(Q, K, V, **o),
    "additive_attention": lambda **o: luong.additive_attention(Q, K, X, V, **o),
    "concat_score": lambda **o: luong.concat_score(Q, K, torch.ones(4, 8), V, **o),
    "concat_attention": lambda **o: luong.concat_attention(Q, K, X, torch.ones(4, 8), V, **o),
    "Concat": lambda **o: luong.Attention(luong.Concat(4, 4, 4, **o))(Q, K, X),
    "Concat score": lambda **o: luong.Concat(4, 4, 4, **o)(Q, K),
    "Concat steps": lambda **o: steps(luong.Attention(luong.Concat(4, 4, 4, **o))),
    "weights": lambda **o: luong.additive_attention(Q, K, X, V, need_weights=True, **o),
    "dropout": lambda **o: luong.additive_attention(Q, K, X, V, dropout=0.5, **o),
}
entries = pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)


def steps(attention):
    return attention.attend(Q, attention.prepare(K, X))


@pytest.fixture
def taken(monkeypatch):
    """The backends that compute, in order."""
    names = []
    assert operators  # loaded before its parts are exchanged

    def log(module, name, function):
        inner = getattr(module, function)

        def logged(*x, **o):
            names.append(name)
            return inner(*x, **o)

        monkeypatch.setattr(module, function, logged)

    for function in ("score", "context_and_weights"):
        log(compiled, "numba", function)
    for function in ("scores", "context"):
        log(blocks, "torch", function)
        log(plain, "reference", function)
    return names


@pytest.mark.parametrize("backend", [None, "numba", "torch", "reference"])
@entries
def test_the_backend_asked_for_computes(entry, backend, taken):
    entry(backend=backend)
    assert taken[0] == (backend or "numba")


@pytest.mark.parametrize("backend", ["", "cuda", "Numba", 3])
@entries
def test_unknown_backend(entry, backend):
    expected = rf"^backend: expected None or one of 'numba', 'torch', 'reference', got {backend!r}$"
    with pytest.raises(ValueError, match=expected):
        entry(backend=backend)


def test_explain():
    assert luong.explain("additive", Q, K, X, V) == {"numba": [], "torch": [], "reference": []}
    assert list(luong.explain("additive")) == ["numba", "torch", "reference"]
    elsewhere = luong.explain("additive", Q.to("meta"), K)
    assert elsewhere == {"numba": ["it computes only on the CPU"], "torch": [], "reference": []}


def test_explain_windows():
    index = torch.zeros(2, 3, 2, dtype=torch.int64)
    assert luong.explain("windowed", Q, K, index) == {"numba": [], "torch": [], "reference": []}
    assert luong.explain("windowed", Q.to("meta"), K)["numba"] == ["it computes only on the CPU"]


@pytest.mark.parametrize("backend", [None, "numba", "torch", "reference"])
def test_the_backend_asked_for_computes_windows(backend, monkeypatch):
    names = []
    for name, function in (("numba", "compiled"), ("torch", "blocked"), ("reference", "formula")):
        inner = getattr(windowed, function)

        def logged(*x, name=name, inner=inner):
            names.append(name)
            return inner(*x)

        monkeypatch.setattr(windowed, function, logged)
    score = luong.Concat(4, 4, 4, backend=backend)
    luong.Attention(score, window=luong.LocalMonotonic(1))(Q, K, X)
    assert names[0] == (backend or "numba")


@pytest.mark.parametrize("operator", ["dot", "", "Additive"])
def test_explain_unknown_operator(operator):
    expected = rf"^operator: expected one of additive, windowed, got '{operator}'$"
    with pytest.raises(ValueError, match=expected):
        luong.explain(operator, Q)


@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_a_named_backend_refuses_to_be_transformed(backend):
    expected = (
        rf"^backend: '{backend}' cannot take this call: "
        r"under torch.func and in forward mode, the plain formula is what can be transformed$"
    )
    with pytest.raises(ValueError, match=expected):
        vmap(lambda q: luong.additive_score(q, K[0], V, backend=backend))(Q)
    with pytest.raises(ValueError, match=expected):
        torch.func.grad(lambda v: luong.additive_score(Q, K, v, backend=backend).sum())(V)


def test_transformed_by_the_reference(taken):
    vmap(lambda q: luong.additive_score(q, K[0], V))(Q)
    assert set(taken) == {"reference"}


def test_a_named_backend_says_all_its_reasons_in_one_line(monkeypatch):
    both = dispatch.Backend("numba", lambda tensors: ["the moon is full", "the sea is rough"])
    monkeypatch.setitem(dispatch.BACKENDS, "additive", [both, *dispatch.BACKENDS["additive"][1:]])
    expected = r"^backend: 'numba' cannot take this call: the moon is full; the sea is rough$"
    with pytest.raises(ValueError, match=expected):
        luong.additive_score(Q, K, V, backend="numba")
    assert luong.explain("additive", Q)["numba"] == ["the moon is full", "the sea is rough"]


def test_a_named_torch_backend_refuses_to_be_compiled():
    torch._dynamo.reset()
    compiled_score = torch.compile(
        lambda: luong.additive_score(Q, K, V, backend="torch"), backend="eager"
    )
    with pytest.raises(ValueError, match="the compiler makes its own blocks"):
        compiled_score()


@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_a_named_backend_refuses_to_be_exported(backend):
    attention = luong.Attention(luong.Concat(4, 4, 4, backend=backend))
    with pytest.raises(Exception, match="exports hold only PyTorch's own operations"):
        torch.export.export(attention, (Q, K))


WITHOUT_NUMBA = """
import sys, warnings
sys.modules["numba"] = None
import torch, luong
from luong.kernels.additive import blocks
x = torch.randn(2, 50, 4, requires_grad=True)
calls, inner = [], blocks.context
blocks.context = lambda *a: calls.append(1) or inner(*a)
attention = luong.Attention(luong.Concat(4, 4, 4))
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("default")
    for _ in range(3):
        luong.additive_attention(x, x, x, x[0, 0]).context.sum().backward()
        attention.attend(x, attention.prepare(x)).context.sum().backward()
print(*(x.message for x in seen), len(calls), sep="|")
try:
    luong.additive_attention(x, x, x, x[0, 0], backend="numba")
except ValueError as error:
    print(error)
print(luong.explain("additive", x)["numba"])
"""


def test_without_numba_the_torch_backend_takes_over_with_one_warning():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_NUMBA],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "numba is not installed: additive and local attention will be slower|6",
        "backend: 'numba' cannot take this call: numba is not installed",
        "['numba is not installed']",
    ]


def test_backends_agree():
    tensors = [x.double() for x in (Q, K, X, V)]
    assert_near(*(luong.additive_attention(*tensors, backend=b).context for b in (None, "torch")))
