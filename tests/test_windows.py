"""Local attention: every score in every window on every backend, against two oracles.

One visits one query at a time, in float64, by the paper's formulas (windows.py); the other is the
global operator with a mask for the window, and with the Gaussian's logarithm among the scores.
"""

import itertools
import math

import pytest
import torch

import luong
import windows
from comparing import assert_all_near, assert_near, derivatives, probe
from operator_cases import Case, assert_case_rounded, options, window_backend
from operators import NAMED, REFERENCE_SCORES
from window_cases import (
    CASES,
    POSITIONS,
    WINDOWS,
    attention_of,
    backends,
    case_of,
    cases,
    given_for,
    some,
)

pytestmark = pytest.mark.usefixtures("poisoned")


def by_masks(case):
    """The same by the global operator."""
    local = case.window

    def call(query, key, value, *parameters, mask=None, lengths=None, position=0):
        n, m = query.shape[-2], key.shape[-2]
        keys = torch.arange(m)
        length = m if lengths is None else lengths[:, None]
        if not isinstance(position, torch.Tensor):
            position = position + torch.arange(n)
        centre = torch.minimum(position, torch.as_tensor(length) - 1)
        seen = keys <= centre[..., None]
        log = torch.zeros(())
        if local.predictive:
            W, v = parameters[-2:]
            real = length / (1 + torch.exp(-torch.tanh(query @ W.T) @ v))
            log = -2 * ((keys - real[..., None]) / local.half_width) ** 2
            centre = torch.minimum(real.detach().floor(), torch.as_tensor(length) - 1)
        if local.half_width is not None:
            seen = (keys - centre[..., None]).abs() <= local.half_width
        if not case.looks_at_keys:
            seen = seen & (keys < parameters[case.of_score - 1].shape[0])
        seen = seen.expand(query.shape[0], n, m)

        def score(query, key):
            scores = case.scores(query, key, *parameters)
            return scores + log if local.renormalize else scores

        found = luong.attention(
            query,
            key,
            value,
            score=score,
            mask=seen if mask is None else seen & mask,
            lengths=lengths,
            need_weights=True,
        )
        assert found.weights is not None
        weights = found.weights if local.renormalize else found.weights * log.exp()
        return weights @ value, weights

    return call


# Values and derivatives


@pytest.mark.parametrize(
    ("kind", "position"),
    [("none", "0"), ("length_0", "2"), ("both", "query"), ("mask", "row"), ("empty_row", "0")],
)
@cases
def test_equals_a_loop_over_queries(case, kind, position):
    tensors, given = case.inputs(), given_for(kind, position)
    context, weights = case.oracle(*tensors, **given)
    found = case.call(*tensors, need_weights=True, **given)
    assert_near(found.context, context)
    assert_near(found.weights, weights)
    assert_near(case.call(*tensors, **given).context, context)


@pytest.mark.parametrize(("kind", "position"), [("length_0", "0"), ("both", "query")])
@cases
def test_derivatives_equal_those_of_masks_on_the_global_operator(case, kind, position):
    tensors, given = case.inputs(), given_for(kind, position)
    expected = derivatives(by_masks(case), tensors, 2, **given)
    assert_all_near(derivatives(case.call, tensors, 2, need_weights=True, **given), expected, 1e-11)
    expected = derivatives(lambda *x, **o: by_masks(case)(*x, **o)[:1], tensors, **given)
    assert_all_near(derivatives(case.call, tensors, **given), expected, 1e-11)


@pytest.mark.parametrize("half_width", [5, 9])
@pytest.mark.parametrize("kind", ["none", "length_0", "both"])
@pytest.mark.parametrize("score", REFERENCE_SCORES)
@backends
def test_local_m_of_all_keys_is_global_attention(score, backend, kind, half_width):
    case = case_of(score, windows.monotonic(half_width), backend)
    everywhere = Case(score, NAMED, "module")
    tensors, given = case.inputs(), options(kind, NAMED.n, NAMED.m)
    expected = derivatives(everywhere.call, tensors, need_weights=True, **given)
    actual = derivatives(case.call, tensors, need_weights=True, **given)
    assert_all_near(actual, expected, 1e-12)


@pytest.mark.parametrize("position", POSITIONS)
@backends
def test_local_m_of_no_width_takes_one_value(backend, position):
    case = case_of("general", windows.monotonic(0), backend)
    tensors, lengths, position = case.inputs(), torch.tensor([6, 3, 0]), POSITIONS[position]
    context = case.call(*tensors, lengths=lengths, position=position).context
    times = position if isinstance(position, torch.Tensor) else position + torch.arange(5)
    times = times.expand(3, 5)
    for b, i in itertools.product(range(3), range(5)):
        t, length = int(times[b, i]), int(lengths[b])
        where = min(t, length - 1)
        expected = tensors[2][b, where] if where >= 0 else torch.zeros(2).double()
        assert_near(context[b, i], expected)


@backends
def test_equal_keys_give_the_mean_of_the_values_in_the_window(backend):
    case = case_of("concat", windows.monotonic(1), backend)
    query, key, value, *parameters = case.inputs()
    context = case.call(query, key[:, :1].expand_as(key), value, *parameters).context
    for i in range(NAMED.n):
        assert_near(context[:, i], value[:, max(0, i - 1) : i + 2].mean(1))


@backends
def test_equal_keys_give_the_gaussian_over_the_size_of_the_window(backend):
    """Hand-worked: W = 0 puts p_t in the middle, 3 of 6; D = 2, σ = 1."""
    window = luong.LocalPredictive(4, 3, 2)
    window.weight.data.zero_()
    attention = luong.Attention(luong.Dot(), window=window).double()
    query, key, value = torch.randn(5, 4), torch.ones(6, 4), torch.eye(6)
    query, key, value = (x.double() for x in (query, key, value))
    factors = [0.0, math.exp(-2), math.exp(-0.5), 1.0, math.exp(-0.5), math.exp(-2)]
    expected = torch.tensor(factors, dtype=torch.float64).expand(5, 6)
    with window_backend(backend):
        assert_near(attention(query, key, value).context, expected / 5)
        attention.window.renormalize = True
        assert_near(attention(query, key, value).context, expected / sum(factors))


@cases
def test_a_source_of_one_word(case):
    tensors = case.inputs(m=1)
    context, weights = case.call(*tensors, need_weights=True)
    expected, dense = case.oracle(*tensors)
    assert_near(context, expected)
    assert_near(weights, dense)
    if case.window.normalised:
        assert_near(context, tensors[2].expand_as(context))


@cases
def test_a_window_wholly_outside_gives_zeros(case):
    """Before the sentence, in a sentence of no words, or behind a mask."""
    tensors = case.inputs()
    given = {"lengths": torch.tensor([6, 0, 6]), "position": torch.tensor([[-2], [0], [1]])}
    given["mask"] = torch.ones(3, 5, 6, dtype=torch.bool)
    given["mask"][2] = False
    rows = slice(1 if case.window.predictive else 0, 3)  # a predicted window is never before it
    tensors[0][2], tensors[0][1] = math.nan, math.inf
    found = derivatives(case.call, tensors, need_weights=True, **given)
    assert not any(x[rows].any() for x in found[:5])  # context, weights, three gradients
    assert all(x.isfinite().all() for x in found)


@pytest.mark.parametrize("stepwise", [False, True])
@pytest.mark.parametrize("case", [x for x in CASES if not x.values[0].jumps])
def test_a_query_without_a_key_in_its_window_may_hold_anything(case, stepwise):
    attention, tensors = attention_of(case), case.inputs()[:3]
    position = torch.tensor([[-2], [0], [1]])

    def step(query, key, value):
        memory = attention.prepare(key, value) if stepwise else None
        found = (
            attention.attend(query, memory, position=position)
            if stepwise
            else attention(query, key, value, position=position)
        )
        gradients = (
            torch.autograd.grad(found.context.sum(), attention.parameters(), retain_graph=True)
            if list(attention.parameters())
            else []
        )
        assert all(x.isfinite().all() for x in gradients)
        return found

    with window_backend(case.formula.backend):
        expected = derivatives(step, tensors)
        tensors[0][0] = math.nan
        assert_all_near(derivatives(step, tensors), expected)
    assert not expected[0][0].any()


@pytest.mark.parametrize("score", REFERENCE_SCORES)
@backends
def test_scores_in_a_window_are_those_of_all_pairs(score, backend):
    case = case_of(score, WINDOWS["local_m"], backend)
    attention, (query, key, value) = attention_of(case), case.inputs()[:3]
    memory = attention.prepare(key, value)
    index = torch.tensor([[0, 1, 1, 3, 2], [3, 0, 2, 1, 1], [2, 2, 2, 0, 3]])[..., None]
    index = index + torch.arange(3)
    with window_backend(backend):
        found = attention.score.compare(query, memory).window_scores(index)
    expected = attention.score.compare(query, memory).scores().expand(3, -1, -1).gather(-1, index)
    assert_near(found.exp(), expected.exp())  # -inf past the table of location


@some
def test_what_is_behind_lengths_and_masks_may_hold_anything(case):
    tensors, given = case.inputs(), given_for("empty_column", "0")
    dirty = [x.clone() for x in tensors]
    dirty[1][:, 1], dirty[2][:, 1], dirty[1][1], dirty[2][1] = (math.nan,) * 4
    dirty[0][1] = math.nan  # its sentence has no words
    clean = [x.clone() for x in tensors]
    clean[1][:, 1], clean[2][:, 1] = 0, 0
    actual = derivatives(case.call, dirty, 2, **given)
    expected = derivatives(case.call, clean, 2, **given)
    assert_all_near(actual, expected)


@some
def test_keys_outside_every_window_change_nothing_and_get_no_gradient(case):
    if case.window.half_width is None:
        tensors, outside = case.inputs(m=40), slice(NAMED.n, None)
    elif case.window.predictive:  # p_t near 20
        tensors, outside = case.inputs(m=40), slice(34, None)
        tensors[-1] *= 0.1
    else:
        tensors, outside = case.inputs(m=40), slice(NAMED.n + 1, None)
    other = [x.clone() for x in tensors]
    other[1][:, outside], other[2][:, outside] = 100, -100
    context, *gradients = derivatives(case.call, tensors)
    assert_near(case.call(*other).context, context)
    assert not gradients[1][:, outside].any()
    assert not gradients[2][:, outside].any()


# The predicted centre


@backends
@pytest.mark.parametrize("renormalize", [False, True])
def test_the_predicted_centre_learns_as_finite_differences_say(backend, renormalize):
    case = case_of("general", windows.predictive(2, renormalize), backend)
    tensors, lengths = case.inputs(), torch.tensor([6, 4, 3])
    W, v = tensors[-2:]
    centre = lengths[:, None] * torch.sigmoid(torch.tanh(tensors[0] @ W.T) @ v)
    assert (centre - centre.round()).abs().min() > 1e-4

    def loss(W, v):
        context = case.call(*tensors[:-2], W, v, lengths=lengths).context
        return (context * probe(context)).sum()

    leaves = [W.clone().requires_grad_(), v.clone().requires_grad_()]
    for which, gradient in enumerate(torch.autograd.grad(loss(*leaves), leaves)):
        assert gradient.abs().min() > 1e-6
        for at in itertools.product(*map(range, gradient.shape)):
            moved = [[x.clone() for x in (W, v)] for _ in range(2)]
            for side, sign in zip(moved, (1, -1), strict=True):
                side[which][at] += sign * 1e-6
            slope = (loss(*moved[0]) - loss(*moved[1])) / 2e-6
            assert slope.item() == pytest.approx(gradient[at].item(), rel=1e-5, abs=1e-9)


def test_where_the_predicted_centre_can_be():
    window = luong.LocalPredictive(1, 1, 2)
    window.weight.data.fill_(9.0)
    window.v.data.fill_(40.0)
    query = torch.tensor([[-9.0], [0.0], [9.0]])
    assert window.centre(query, 7).tolist() == [pytest.approx(0.0), 3.5, 7.0]
    attention = luong.Attention(luong.Dot(), window=window)
    found = attention.attend_window(query, attention.prepare(torch.ones(7, 1), torch.eye(7)))
    assert found.start.tolist() == [0, 1, 2]  # 5 keys wide
    inside = found.weights > 0
    assert inside.tolist() == [[True] * 3 + [False] * 2, [True] * 5, [False, False] + [True] * 3]


def away_from_jumps(case, dtype, lengths):
    """Inputs for which every p_t is halfway between two positions, but for rounding."""
    query, *rest, W, v = case.inputs()
    generator = torch.Generator().manual_seed(8)
    where = torch.rand(query.shape[:2], generator=generator).double() * lengths[:, None]
    wanted = (where.floor() + 0.5) / lengths[:, None]
    W, v = torch.zeros_like(W), torch.tensor([4.0, 0.5, 0.25]).double()
    W[0, 0] = 1.0
    query[..., 0] = torch.atanh(torch.logit(wanted) / 4)
    return [x.to(dtype) for x in (query, *rest, W, v)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("kind", ["none", "both"])
@pytest.mark.parametrize("case", [x for x in CASES if x.values[0].jumps])
def test_error_with_a_predicted_centre_in_half_types(case, kind, need_weights, dtype):
    given = options(kind, NAMED.n, NAMED.m) | {"need_weights": need_weights}
    lengths = given.get("lengths", torch.tensor([NAMED.m] * 3))
    tensors = away_from_jumps(case, dtype, lengths)
    assert_case_rounded(case, tensors, given)
