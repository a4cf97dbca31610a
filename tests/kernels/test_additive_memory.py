"""What additive attention keeps, and what it knows of a prepared memory."""

from pathlib import Path

import pytest
import torch

import luong
from additive_cases import backends, every_backend, normal, run
from comparing import assert_all_near
from luong.kernels.additive import compiled


def bytes_kept(steps: int, attention: luong.Attention, autocast: bool) -> int:
    """Bytes that a decoder of `steps` steps keeps for the backward pass, attention's part."""
    dtype = torch.float32 if autocast else attention.score.v.dtype
    key, query = normal(3, 50, 40, dtype=dtype), normal(3, 1, 40, dtype=dtype).requires_grad_()
    kept = {}

    def keep(x):
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage()  # alive: no address comes twice
        return x

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        memory = attention.prepare(key, lengths=torch.tensor([50, 20, 1]))
        for _ in range(steps):
            query = attention.attend(query, memory).context
    query.float().sum().backward()
    return sum(x.nbytes() for x in kept.values())


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "autocast"])
@backends
def test_a_step_keeps_no_keys(backend, kind):
    score = luong.Concat(40, 40, 64, bias=True, backend=backend)
    attention = luong.Attention(score).to(torch.bfloat16 if kind == "bfloat16" else torch.float32)
    once, often = (bytes_kept(steps, attention, kind == "autocast") for steps in (1, 10))
    # query, projected query, weights, context, and v and bias in another dtype: all float32
    step = 4 * (3 * (40 + 64 + 50 + 40) + 2 * 64 + 40 * 64 * (kind == "autocast"))
    assert 0 < often - once <= 9 * step
    assert step < 4 * 3 * 50 * 64 or kind == "autocast"


PEAK = """
import sys, pathlib, torch, luong
def status(name):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024
def work(n):
    x = [torch.randn(1, n, 256, requires_grad=True) for _ in range(3)]
    v = torch.randn(256, requires_grad=True)
    before = status("VmRSS")
    luong.additive_attention(*x, v, backend=sys.argv[1]).context.sum().backward()
    return status("VmHWM") - before
work(8)
print(work(int(sys.argv[2])))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
@pytest.mark.parametrize(("backend", "n", "most"), [("numba", 2048, 100), ("torch", 1024, 200)])
def test_peak_memory(backend, n, most):
    """In MiB, forward and backward; n x n x d would be 4096 and 1024."""
    assert float(run(PEAK, backend, str(n))) < most


def prepared(backend, batch=(3,), **given):
    attention = luong.Attention(luong.Concat(6, 5, 19, backend=backend)).double()
    key, value = normal(*batch, 7, 5), normal(*batch, 7, 4)
    return attention, (key, value), attention.prepare(key, value, **given)


@pytest.mark.parametrize(
    ("batch", "key_batch", "lengths"),
    [
        ((3,), (3,), (7, 2, 0)),
        ((3,), (1,), (7, 2, 0)),
        ((3,), (1,), None),
        ((3,), (), None),
        ((3, 2), (3, 2), ((7, 2), (0, 4), (1, 7))),
        ((3, 2), (3, 1), ((7, 2), (0, 4), (1, 7))),
        ((3, 2), (3, 1), None),
        ((3, 2), (2,), None),
    ],
    ids=str,
)
@pytest.mark.parametrize("index", [[2, 0], [1], [False, True, True], [2, 1, 0, 0, 1, 2]], ids=str)
@every_backend
def test_select_keeps_what_is_known_about_the_keys(backend, index, batch, key_batch, lengths):
    attention = luong.Attention(luong.Concat(6, 5, 19, backend=backend)).double()
    query, key, value = normal(*batch, 2, 6), normal(*key_batch, 7, 5), normal(*batch, 7, 4)
    index = torch.tensor(index)
    given = {} if lengths is None else {"lengths": torch.tensor(lengths)}
    expected = attention(query, key, value, **given).context[index]
    memory = attention.prepare(key, value, **given).select(index)
    assert_all_near([attention.attend(query[index], memory).context], [expected])


def test_select_prepares_nothing_again(monkeypatch):
    attention, _, memory = prepared("numba", lengths=torch.tensor([7, 2, 5]))
    assert memory.prepared.key_terms is not None
    chosen = memory.select(torch.tensor([2, 1]))
    monkeypatch.setattr(compiled, "prepare", None)
    assert attention.attend(normal(2, 1, 6), chosen).context.shape == (2, 1, 4)


@every_backend
def test_queries_broadcast_over_a_prepared_memory(backend):
    attention, source, memory = prepared(backend, lengths=torch.tensor([7, 2, 5]))
    query = normal(4, 3, 2, 6)
    wide_source = [x.expand(4, *x.shape) for x in source]
    expected = attention(query, *wide_source, lengths=torch.tensor([7, 2, 5])).context
    assert_all_near([attention.attend(query, memory).context], [expected])


@every_backend
def test_beams_ride_on_the_query_axis(backend):
    given = {"lengths": torch.tensor([7, 2, 5])}
    attention, source, memory = prepared(backend, **given)
    beams = normal(3, 5, 6)
    together = attention.attend(beams, memory).context
    for i in range(5):
        alone = attention.attend(beams[:, i : i + 1], memory).context
        assert_all_near([together[:, i : i + 1]], [alone])
        repeated = attention(beams[:, i : i + 1], *source, **given).context
        assert_all_near([alone], [repeated])
