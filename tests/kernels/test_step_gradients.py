"""The gradients that decoder steps leave to their memory: right in every pass, gone after it."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import luong
from additive_cases import INF, normal
from comparing import assert_all_near
from luong.kernels.additive import compiled
from luong.kernels.additive.step_gradients import Step

STEPS = 4


class Decoder:
    """A few steps, each from the context before, over one memory."""

    def __init__(self, dtype=torch.float64):
        torch.manual_seed(0)
        attention = luong.Attention(luong.Concat(4, 5, 19, bias=True, backend="numba"))
        self.attention = attention.to(dtype)
        shapes = (3, 7, 5), (3, 7, 4), (3, 1, 4)
        self.leaves = [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]
        self.wanted = [*self.leaves, *self.attention.parameters()]
        self.lengths = torch.tensor([7, 2, 0])

    def prepare(self):
        return self.attention.prepare(*self.leaves[:2], lengths=self.lengths)

    def run(self, memory=None, each=lambda query: query):
        """The contexts; without a memory each step takes the source anew."""
        contexts = [self.leaves[2]]
        for _ in range(STEPS):
            query = each(contexts[-1])
            if memory is None:
                found = self.attention(query, *self.leaves[:2], lengths=self.lengths)
            else:
                found = self.attention.attend(query, memory)
            contexts.append(found.context)
        return contexts[1:]

    def gradients(self, contexts, wanted=None, retain_graph=False):
        with torch.enable_grad():  # in hooks there is no grad mode
            loss = sum(x.sin().sum() for x in contexts)
        wanted = self.wanted if wanted is None else wanted
        return torch.autograd.grad(loss, wanted, retain_graph=retain_graph)


def left():
    """How many steps are still held."""
    return sum(type(x) is Step for x in gc.get_objects())


def test_gradients_of_the_query_leave_nothing():
    decoder = Decoder()
    contexts = decoder.run(decoder.prepare())
    expected = decoder.gradients(decoder.run(), [decoder.leaves[2]])
    for _ in range(3):
        found = decoder.gradients(contexts, [decoder.leaves[2]], retain_graph=True)
        assert_all_near(found, expected, 1e-12)
        assert left() == 0
    assert_all_near(decoder.gradients(contexts), decoder.gradients(decoder.run()), 1e-12)
    assert left() == 0


@pytest.mark.parametrize("wanted", [[0], [1], [2], [0, 2], [3], [4, 5]])
def test_gradients_in_part(wanted):
    decoder = Decoder()
    wanted = [decoder.wanted[i] for i in wanted]
    found = decoder.gradients(decoder.run(decoder.prepare()), wanted)
    assert_all_near(found, decoder.gradients(decoder.run(), wanted), 1e-12)


def test_gradients_of_prepared_keys():
    decoder = Decoder()
    memory = decoder.prepare()
    found = decoder.gradients(decoder.run(memory), [memory.key, memory.value])
    projected = luong.Attention(luong.Concat(4, 19, 19, bias=True, simplified=True)).double()
    weight, v, bias = decoder.attention.parameters()
    projected.load_state_dict({"score.weight": weight[:, :4], "score.v": v, "score.bias": bias})
    decoder.attention = projected
    decoder.leaves[:2] = [x.detach().requires_grad_() for x in (memory.key, memory.value)]
    assert_all_near(found, decoder.gradients(decoder.run(), decoder.leaves[:2]), 1e-12)


class Stop(Exception):
    pass


def stop(_):
    raise Stop


def test_a_pass_that_fails_leaves_nothing():
    decoder = Decoder()
    memory = decoder.prepare()
    contexts = decoder.run(memory)
    handle = contexts[1].register_hook(stop)
    for _ in range(3):
        with pytest.raises(Stop):
            decoder.gradients(contexts, retain_graph=True)
        assert left() == 0
    handle.remove()
    expected = decoder.gradients(decoder.run())
    assert_all_near(decoder.gradients(contexts, retain_graph=True), expected, 1e-12)
    decoder.leaves[0].register_hook(stop)  # past the source
    with pytest.raises(Stop):
        decoder.gradients(contexts)
    assert left() == 0


def test_a_pass_within_a_pass():
    """A hook between the steps of one pass runs another one, over the same source."""
    decoder = Decoder()
    contexts = decoder.run(decoder.prepare())
    inner: list[list[torch.Tensor]] = []

    def within(_):
        handle.remove()
        inner.append(decoder.gradients(contexts, retain_graph=True))

    handle = contexts[1].register_hook(within)
    outer = decoder.gradients(contexts, retain_graph=True)
    expected = decoder.gradients(decoder.run())
    assert_all_near(outer, expected, 1e-12)
    assert_all_near(inner[0], expected, 1e-12)
    assert left() == 0


def test_two_threads_go_backward_over_one_source_at_once():
    decoder = Decoder()
    contexts, both = decoder.run(decoder.prepare()), threading.Barrier(2, timeout=30)
    contexts[1].register_hook(lambda _: (both.wait(), None)[1])
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(decoder.gradients, contexts, None, True) for _ in range(2)]
        for each in found:
            assert_all_near(each.result(), decoder.gradients(decoder.run()), 1e-12)
    assert left() == 0


@pytest.mark.parametrize("of", ["steps", "all"])
def test_checkpoints(of):
    decoder = Decoder()
    expected = decoder.gradients(decoder.run())
    if of == "steps":
        contexts = checkpoint(decoder.run, decoder.prepare(), use_reentrant=False)
    else:
        contexts = checkpoint(lambda: decoder.run(decoder.prepare()), use_reentrant=False)
    assert_all_near(decoder.gradients(contexts, retain_graph=True), expected, 1e-12)
    assert_all_near(decoder.gradients(contexts), expected, 1e-12)
    assert left() == 0


def test_hooks_see_the_gradients_of_all_steps_at_once():
    decoder, seen = Decoder(), []
    memory = decoder.prepare()
    memory.key.register_hook(lambda grad: seen.append(grad.clone()))
    contexts = decoder.run(memory)
    decoder.gradients(contexts, retain_graph=True)
    (once,) = seen
    assert_all_near([once], decoder.gradients(contexts, [memory.key]), 1e-12)


def test_a_graph_of_the_gradients_of_some_passes():
    decoder = Decoder()
    contexts = decoder.run(decoder.prepare())
    plain = decoder.gradients(contexts, retain_graph=True)
    loss = sum(x.sin().sum() for x in contexts)
    graph = torch.autograd.grad(loss, decoder.wanted, create_graph=True)
    assert_all_near([x.detach() for x in graph], plain, 1e-10)
    assert_all_near(decoder.gradients(contexts, retain_graph=True), plain, 1e-12)
    again = torch.autograd.grad(sum(x.square().sum() for x in graph), decoder.wanted)
    assert all(x.isfinite().all() for x in again)
    assert left() == 0


# A decoder of every kind


def decoder(kind: str = "plain", dtype: torch.dtype = torch.float64):
    """An attention, its leaves, and a function of them: 5 steps, each from the context before."""
    torch.manual_seed(0)
    score = luong.Concat(4, 5, 19, bias=True, backend="numba")
    attention = luong.Attention(luong.Scaled(score) if kind == "gain" else score).to(dtype)
    key, value, query = normal(3, 7, 5), normal(3, 7, 4), normal(3, 1, 4)
    if kind == "far":
        key[1] *= 1e3
    if kind == "v":
        score.v.data[2] = INF
    lengths = None if kind == "full" else torch.tensor([7, 2, 0])

    def run(key: Tensor, value: Tensor, query: Tensor, prepare: bool = True) -> list[Tensor]:
        memory = attention.prepare(key, value, lengths=lengths)
        contexts = []
        for _ in range(5):
            if prepare:
                query, _ = attention.attend(query, memory, need_weights=kind == "weights")
            else:
                query, _ = attention(query, key, value, lengths=lengths)
            contexts.append(query)
        return contexts

    leaves = [x.to(dtype).requires_grad_() for x in (key, value, query)]
    return run, leaves, [*leaves, *attention.parameters()]


@pytest.mark.parametrize("kind", ["plain", "full", "gain", "far", "v", "weights"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=["f64", "bf16"])
def test_gradients_of_steps_are_those_without_a_memory(kind, dtype):
    run, leaves, wanted = decoder(kind, dtype)
    given = [normal(3, 1, 4, seed=i).to(dtype) for i in range(5)]
    found = [
        torch.autograd.grad(run(*leaves, prepare=prepare), wanted, given)
        for prepare in (True, False)
    ]
    for one, other in zip(*found, strict=True):
        tolerance = {torch.float64: 1e-12, torch.bfloat16: 0.1}[dtype]
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def test_steps_may_go_backward_one_by_one_again_and_in_part():
    run, leaves, wanted = decoder()
    contexts = run(*leaves)
    expected = torch.autograd.grad([x.sum() for x in run(*leaves, prepare=False)], wanted)
    whole = torch.autograd.grad([x.sum() for x in contexts], wanted, retain_graph=True)
    assert_all_near(whole, expected, 1e-12)
    torch.autograd.grad(contexts[3].sum(), leaves[2], retain_graph=True)
    first = torch.autograd.grad(contexts[0].sum(), leaves[1], retain_graph=True)
    rest = torch.autograd.grad([x.sum() for x in contexts[1:]], leaves[1], retain_graph=True)
    assert_all_near([first[0] + rest[0]], [expected[1]], 1e-12)
    assert_all_near(torch.autograd.grad([x.sum() for x in contexts], wanted), expected, 1e-12)


def test_second_derivatives_of_steps():
    run, leaves, wanted = decoder()
    found = []
    for prepare in (True, False):
        contexts = run(*leaves, prepare=prepare)
        slopes = torch.autograd.grad([x.sin().sum() for x in contexts], wanted, create_graph=True)
        found.append(torch.autograd.grad(sum(x.square().sum() for x in slopes), wanted))
    prepared, anew = found
    assert_all_near(prepared, anew, 1e-12)


def test_gradients_of_keys_are_computed_once_for_all_steps(monkeypatch):
    run, leaves, wanted = decoder()
    calls = []

    def backward(grad, query, key, *rest):
        calls.append(query.shape[1])
        return score_backward(grad, query, key, *rest)

    score_backward = compiled.score_backward
    monkeypatch.setattr(compiled, "score_backward", backward)
    monkeypatch.setattr(compiled, "context_backward", None)
    torch.autograd.grad(run(*leaves)[-1].sum(), wanted)
    assert calls == [5]
