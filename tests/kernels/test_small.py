"""Small calls: the plain formula where it is faster than a kernel, and a memory ready for steps."""

from collections.abc import Callable

import pytest
import torch

import luong
from comparing import assert_all_near, derivatives
from luong import reference
from luong.kernels import dispatch
from luong.kernels.additive import compiled, plain

B, M, D = 3, 7, 4


@pytest.fixture(params=[0, 1 << 30], ids=["kernel", "formula"])
def small(request, monkeypatch):
    """The number of elements below which the plain formula is taken."""
    monkeypatch.setattr(dispatch, "SMALL", request.param)
    return request.param


def inputs(n, dtype=torch.float64):
    torch.manual_seed(0)
    return [torch.randn(B, rows, D, dtype=dtype) for rows in (n, M, M)]


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("lengths", [None, torch.tensor([7, 2, 5])], ids=["whole", "lengths"])
@pytest.mark.parametrize("score", ["dot", "scaled", "general", "concat"])
@pytest.mark.parametrize("n", [1, 16, 17])  # 17: too many for a step
def test_steps_are_the_reference_s(small, score, n, lengths, need_weights):
    module = {
        "dot": luong.Dot(),
        "scaled": luong.Scaled(luong.ScaledDot()),
        "general": luong.General(D, D),
        "concat": luong.Concat(D, D, 5, bias=True),
    }[score].double()
    attention = luong.Attention(module)
    parameters = [x.detach() for x in module.parameters()]
    formulas: dict[str, Callable[..., tuple[torch.Tensor, torch.Tensor]]]
    formulas = {"general": reference.general_attention, "concat": reference.concat_attention}
    formula = formulas.get(score, reference.dot_attention)

    def ours(query, key, value):
        memory = attention.prepare(key, value, lengths=lengths)
        found = attention.attend(query, memory, need_weights=need_weights)
        return [x for x in found if x is not None]

    def theirs(query, key, value):
        query = query * D**-0.5 if score == "scaled" else query
        rest = parameters if score in ("general", "concat") else []
        found = formula(query, key, value, *rest, lengths=lengths)
        return list(found)[: 1 + need_weights]

    tensors = inputs(n)
    assert_all_near(derivatives(ours, tensors, 2), derivatives(theirs, tensors, 2), 1e-12)
    if lengths is not None:
        poisoned = [x.clone() for x in tensors]
        poisoned[1][1, 2:] = poisoned[2][1, 2:] = float("nan")
        assert_all_near(derivatives(ours, poisoned, 1), derivatives(ours, tensors, 1))


def test_a_small_call_takes_the_formula_unless_a_backend_is_named(monkeypatch):
    query, key, value = inputs(1)
    v, taken = torch.randn(D, dtype=torch.float64), list[str]()
    for module, name in ((compiled, "context_and_weights"), (plain, "context"), (plain, "scores")):
        inner = getattr(module, name)

        def logged(*x, inner=inner, name=module.__name__):
            taken.append(name.rsplit(".", 1)[1])
            return inner(*x)

        monkeypatch.setattr(module, name, logged)

    def by(call):
        taken.clear()
        call()
        return taken[0]

    for limit, expected in ((B * M * D, "compiled"), (B * M * D + 1, "plain")):
        monkeypatch.setattr(dispatch, "SMALL", limit)
        slower = f"below {limit:,} elements of n x m x d, the plain formula is faster"
        reasons = [slower] if expected == "plain" else []
        told = luong.explain("additive", query, key)
        assert told == {"numba": reasons, "torch": reasons, "reference": []}
        for backend, chosen in ((None, expected), ("numba", "compiled"), ("reference", "plain")):
            score = luong.Concat(D, D, D, backend=backend).double()
            attention = luong.Attention(score)
            memory = attention.prepare(key, value)
            assert by(lambda: attention.attend(query, memory)) == chosen  # noqa: B023
            call = lambda: luong.additive_attention(query, key, value, v, backend=backend)  # noqa: E731, B023
            assert by(call) == chosen


@pytest.mark.parametrize("change", ["key", "value", "mask"])
def test_a_step_sees_a_part_that_was_changed_in_place(small, change):
    query, key, value = inputs(1)
    attention = luong.Attention(luong.Concat(D, D, D).double())
    with torch.no_grad():
        memory = attention.prepare(key, value, lengths=torch.tensor([7, 2, 5]))
        attention.attend(query, memory)
        part = getattr(memory, change)
        part[0, ..., :3] = 0 if change == "mask" else 2
        fresh = luong.Attention(attention.score).attend(query, luong.Memory(*memory[:4]))
        torch.testing.assert_close(attention.attend(query, memory).context, fresh.context)


def test_some_sentences_of_a_memory_are_ready_for_steps_too(small):
    query, key, value = inputs(2)
    attention = luong.Attention(luong.Concat(D, D, D).double())
    with torch.no_grad():
        memory = attention.prepare(key, value, lengths=torch.tensor([7, 2, 5]))
        some = memory.select(torch.tensor([2, 1]))
        assert some.prepared.fits(query[:2], some)
        found = attention.attend(query[[2, 1]], some).context
        torch.testing.assert_close(found, attention.attend(query, memory).context[[2, 1]])


def test_what_does_not_fit_is_checked(small):
    query, key, value = inputs(1)
    attention = luong.Attention(luong.Dot())
    memory = attention.prepare(key, value)
    assert memory.prepared.fits(query, memory)
    for other in (query[0], query[:2], query.float(), torch.cat([query] * 17, 1), query[None]):
        assert not memory.prepared.fits(other, memory)
    found = attention.attend(query[:1], memory).context  # a query for all sentences
    torch.testing.assert_close(found, attention.attend(query[:1].expand(B, 1, D), memory).context)
    with pytest.raises(TypeError, match=r"^query: expected torch\.float64 like key"):
        attention.attend(query.float(), memory)
    with pytest.raises(
        ValueError, match=r"^key: expected size 3 in the last dimension, like query"
    ):
        attention.attend(query[..., :3], memory)
