"""Local attention at given positions, step by step, with weights of the window, with dropout."""

import itertools

import pytest
import torch

import luong
import windows
from comparing import assert_near
from operator_cases import options, window_backend
from operators import NAMED, REFERENCE_SCORES
from window_cases import (
    BACKENDS,
    CASES,
    WINDOWS,
    attention_of,
    case_of,
    cases,
    scatter,
    some,
)

pytestmark = pytest.mark.usefixtures("poisoned")


# Positions, steps, and the weights of the window only


@cases
def test_step_by_step_equals_all_at_once(case):
    attention, (query, key, value) = attention_of(case), case.inputs()[:3]
    with window_backend(case.formula.backend):
        memory = attention.prepare(key, value, lengths=torch.tensor([6, 4, 0]))
        context, weights = attention.attend(query, memory, position=2, need_weights=True)
        for i in range(NAMED.n):
            one = query[:, i : i + 1]
            for position in (2 + i, torch.tensor(2 + i), torch.tensor([[2 + i]] * 3)):
                step = attention.attend(one, memory, position=position, need_weights=True)
                assert_near(step.context, context[:, i : i + 1])
                assert_near(step.weights, weights[:, i : i + 1])


@some
def test_beams_and_sentences_at_positions_of_their_own(case):
    attention, (query, key, value) = attention_of(case), case.inputs()[:3]
    with window_backend(case.formula.backend):
        memory = attention.prepare(key, value, lengths=torch.tensor([6, 4, 1]))
        at = torch.tensor([[3], [0], [2]])  # of each sentence
        together = attention.attend(query, memory, position=at).context
        for b, i in itertools.product(range(3), range(NAMED.n)):
            row = memory.select(torch.tensor([b]))
            one = query[b : b + 1, i : i + 1]
            alone = attention.attend(one, row, position=int(at[b])).context
            assert_near(alone[0, 0], together[b, i])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_positions_of_any_integer_type(dtype):
    case = case_of("dot", windows.monotonic(1))
    tensors, position = case.inputs(), torch.tensor([[3], [0], [2]])
    expected = case.call(*tensors, position=position).context
    assert torch.equal(case.call(*tensors, position=position.to(dtype)).context, expected)


def test_vmap_over_positions():
    case = case_of("dot", windows.monotonic(1))
    tensors = case.inputs()
    position = torch.tensor([[3], [0], [2]])
    mapped = torch.func.vmap(lambda q, k, v, t: case.call(q, k, v, position=t).context)
    expected = case.call(*tensors, position=position).context
    query, key, value = tensors
    assert_near(mapped(query, key, value, position), expected)


WITH_WIDTH = [x for x in CASES if x.values[0].window.half_width is not None]


@pytest.mark.parametrize(
    ("kind", "m"), [("none", 6), ("length_0", 6), ("mask_b1m", 6), ("none", 2), ("none", 0)]
)
@pytest.mark.parametrize("case", WITH_WIDTH)
def test_weights_of_the_window_are_all_weights(case, kind, m):
    attention, (query, key, value) = attention_of(case), case.inputs(m=m)[:3]
    with window_backend(case.formula.backend):
        memory = attention.prepare(key, value, **options(kind, NAMED.n, NAMED.m))
        context, weights = attention.attend(query, memory, position=1, need_weights=True)
        found = attention.attend_window(query, memory, position=1)
    width = min(2 * case.window.half_width + 1, m)
    assert found.weights.shape == (3, NAMED.n, width)
    assert found.start.shape == (3, NAMED.n)
    assert torch.equal(found.context, context)
    assert torch.equal(scatter(found, m), weights)


@pytest.mark.parametrize("shared", ["key", "value", "query"])
def test_weights_of_the_window_have_the_batch_of_the_result(shared):
    attention = luong.Attention(luong.Dot(), window=luong.LocalMonotonic(1)).double()
    query, key, value = torch.randn(3, 5, 4), torch.randn(3, 7, 4), torch.randn(3, 7, 2)
    query, key, value = (
        x[0].double() if name == shared else x.double()
        for name, x in (("query", query), ("key", key), ("value", value))
    )
    memory = attention.prepare(key, value)
    found = attention.attend_window(query, memory)
    context, weights = attention.attend(query, memory, need_weights=True)
    assert_near(found.context, context)
    assert_near(scatter(found, 7), weights)


# Dropout


@pytest.mark.parametrize("score", REFERENCE_SCORES)
@pytest.mark.parametrize("name", WINDOWS)
def test_dropout_is_seeded_and_the_same_on_every_backend(score, name):
    results = []
    for backend in BACKENDS:
        case = case_of(score, WINDOWS[name], backend)
        attention, tensors = attention_of(case, dropout=0.5), case.inputs()[:3]
        with window_backend(backend):
            torch.manual_seed(3)
            context, weights = attention(*tensors, need_weights=True)
            torch.manual_seed(3)
            assert torch.equal(attention(*tensors).context, context)
            plain = attention.eval()(*tensors, need_weights=True)
        assert_near(weights, plain.weights)  # before dropout
        assert (context - plain.context).abs().max() > 0.01
        results.append(context)
    for other in results[1:]:
        assert_near(other, results[0])
