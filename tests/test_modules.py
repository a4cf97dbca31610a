"""Modules: prepared memory, decoder steps, dropout, copies, and what they hold."""

import copy
import math
import pickle

import pytest
import torch

import luong
from comparing import assert_all_near, assert_near, combine, derivatives
from operator_cases import CASES, MODULES, options
from operators import FORMULAS

modules = pytest.mark.parametrize("case", MODULES, ids=lambda case: case.name)
kinds = pytest.mark.parametrize("kind", ["none", "length_0", "mask_b1m", "mask", "empty_row"])


def attention_of(case, dropout=0.0):
    module = case.attention(dropout).double()
    for parameter, x in zip(module.parameters(), case.inputs()[3:], strict=True):
        parameter.data.copy_(x)
    return module


@kinds
@modules
def test_prepare_and_attend_equal_forward(case, kind):
    attention, given = attention_of(case), options(kind, case.sizes.n, case.sizes.m)
    query, key, value = (x.requires_grad_() for x in case.inputs()[:3])
    leaves = [query, key, value, *attention.parameters()]

    def both(run):
        result = run()
        gradients = torch.autograd.grad(
            combine(result), leaves, allow_unused=True, materialize_grads=True
        )
        return [*result, *gradients]

    expected = both(lambda: attention(query, key, value, need_weights=True, **given))
    memory = attention.prepare(key, value, **given)
    assert_all_near(
        both(lambda: attention.attend(query, memory, need_weights=True)), expected, 1e-12
    )
    assert_near(attention.attend(query, memory).context, expected[0])
    assert_near(attention(query, key, value, **given).context, expected[0])


@modules
def test_step_by_step_equals_all_at_once(case):
    attention, (query, key, value) = attention_of(case), case.inputs()[:3]
    memory = attention.prepare(key, value, lengths=torch.tensor([case.sizes.m, 4, 0]))
    context, weights = attention.attend(query, memory, need_weights=True)
    for i in range(case.sizes.n):
        step = attention.attend(query[:, i : i + 1], memory, need_weights=True, **case.at(i))
        assert_near(step.context, context[:, i : i + 1])
        assert_near(step.weights, weights[:, i : i + 1])


@modules
def test_beams_ride_on_the_query_axis(case):
    attention, (query, key, value) = attention_of(case), case.inputs()[:3]
    memory = attention.prepare(key, value, lengths=torch.tensor([case.sizes.m, 4, 2]))
    beams = query[:, :4]  # four beams of one step
    together = attention.attend(beams, memory, **case.at(torch.tensor([3]))).context
    for beam in range(4):
        alone = attention.attend(beams[:, beam : beam + 1], memory, **case.at(3)).context
        assert_near(together[:, beam : beam + 1], alone)


@pytest.mark.parametrize(
    "index", [torch.tensor([2, 0]), torch.tensor([True, False, True]), torch.tensor([1, 1, 1, 0])]
)
@kinds
@modules
def test_select_keeps_these_rows(case, kind, index):
    attention, given = attention_of(case), options(kind, case.sizes.n, case.sizes.m)
    query, key, value = case.inputs()[:3]
    memory = attention.prepare(key, value, **given)
    context = attention.attend(query[index], memory.select(index)).context
    assert_near(context, attention.attend(query, memory).context[index])


@pytest.mark.parametrize("shared", ["key", "value"])
def test_select_with_a_side_shared_by_the_batch(shared):
    attention = luong.Attention(luong.Dot())
    query, key, value = (torch.randn(shape).double() for shape in ((3, 5, 4), (3, 7, 4), (3, 7, 2)))
    key, value = (key[:1], value) if shared == "key" else (key, value[:1])
    memory, index = attention.prepare(key, value), torch.tensor([2, 0])
    expected = attention.attend(query, memory).context[index]
    assert_near(attention.attend(query[index], memory.select(index)).context, expected)


@modules
def test_value_is_key_by_default(case):
    attention, (query, key, _) = attention_of(case), case.inputs()[:3]
    lengths = torch.tensor([case.sizes.m, 4, 0])
    expected = attention(query, key, key, lengths=lengths).context
    assert_near(attention(query, key, lengths=lengths).context, expected)
    assert_near(attention.attend(query, attention.prepare(key, lengths=lengths)).context, expected)


@modules
def test_prepare_cleans_once(case):
    attention, (query, key, value) = attention_of(case), case.inputs()[:3]
    lengths = torch.tensor([case.sizes.m, 4, 0])

    def stepwise(query, key, value):
        memory = attention.prepare(key, value, lengths=lengths)
        assert memory.key.isfinite().all()
        assert memory.value.isfinite().all()
        return attention.attend(query, memory)

    expected = derivatives(attention, [query, key, value], lengths=lengths)
    key[1, 4:], value[1, 4:], query[2] = math.nan, math.inf, math.nan
    assert_all_near(derivatives(stepwise, [query, key, value]), expected, 1e-12)


def test_prepare_cleans_what_location_cannot_reach():
    attention, query, key = (
        luong.Attention(luong.Location(11, 5)).double(),
        torch.ones(5, 11).double(),
        torch.ones(7, 3).double(),
    )
    expected = attention(query, key[:5]).context
    key[5:] = math.nan
    assert_near(attention.attend(query, attention.prepare(key)).context, expected)


def test_memory_prepared_outside_autocast():
    torch.manual_seed(0)
    attention, query, key = (
        luong.Attention(luong.Dot()),
        torch.randn(2, 13, 3),
        torch.randn(2, 17, 3),
    )
    memory = attention.prepare(key)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        context = attention.attend(query, memory).context
        expected = attention(query, key).context
    assert context.dtype == torch.bfloat16
    assert_near(context, expected, 0.02)


# Dropout


@modules
def test_dropout_only_in_training(case):
    attention, tensors = attention_of(case, dropout=0.5), case.inputs()[:3]
    plain = attention_of(case)(*tensors, need_weights=True)
    assert_near(attention.eval()(*tensors).context, plain.context)
    memory = attention.prepare(*tensors[1:])
    assert_near(attention.attend(tensors[0], memory).context, plain.context)
    attention.train()
    torch.manual_seed(0)
    context, weights = attention(*tensors, need_weights=True)
    assert (context - plain.context).abs().max() > 0.05
    assert_near(weights, plain.weights)
    for run in (attention, lambda query, *_: attention.attend(query, memory)):
        torch.manual_seed(0)
        assert_near(run(*tensors).context, context)


def test_dropout_keeps_the_mean_and_drops_at_its_rate():
    attention = luong.Attention(luong.ScaledDot(), dropout=0.25).double()
    torch.manual_seed(0)
    query, key = torch.randn(2, 13, 7).double(), torch.randn(2, 17, 7).double()
    value = torch.eye(17).double().expand(2, 17, 17)  # the context is the kept weights
    expected = attention.eval()(query, key, value).context
    attention.train()
    kept = torch.stack([attention(query, key, value).context for _ in range(2000)])
    assert_near(kept.mean(0) / expected, torch.ones_like(expected), 0.08)
    assert (kept == 0).double().mean().item() == pytest.approx(0.25, abs=0.005)
    assert_near(kept.max(0).values, expected / 0.75)


# What modules hold


@modules
def test_parameters_have_the_names_and_shapes_of_the_formulas(case):
    named = case.attention().named_parameters()
    assert {name: tuple(x.shape) for name, x in named} == case.parameters


@modules
def test_copies_and_round_trips(case):
    attention, tensors = attention_of(case, dropout=0.1).eval(), case.inputs()[:3]
    expected = attention(*tensors).context
    fresh = case.attention().double()
    fresh.load_state_dict(attention.state_dict())
    for again in (copy.deepcopy(attention), pickle.loads(pickle.dumps(attention)), fresh):
        assert torch.equal(again(*tensors).context, expected)


@modules
def test_no_module_keeps_a_tensor(case):
    attention, (query, key, value) = attention_of(case, dropout=0.5), case.inputs()[:3]
    lengths = torch.tensor([case.sizes.m, 4, 0])

    def held():
        return [[dict(vars(x)), dict(x._parameters), dict(x._buffers)] for x in attention.modules()]

    before = held()
    attention(query, key, value, lengths=lengths, need_weights=True)
    attention.attend(query, attention.prepare(key, value, lengths=lengths))
    assert held() == before


STARTS = {
    "General": (lambda: luong.General(400, 300), {"weight": 1 / math.sqrt(400)}),
    "Concat": (
        lambda: luong.Concat(200, 200, 1000, bias=True),
        {"weight": 1 / math.sqrt(400), "v": 1 / math.sqrt(1000), "bias": 0.0},
    ),
    "simplified": (lambda: luong.Concat(200, 50, 50, simplified=True), {"weight": 200**-0.5}),
    "Location": (lambda: luong.Location(400, 300), {"weight": 1 / math.sqrt(400)}),
    "LocalPredictive": (
        lambda: luong.LocalPredictive(400, 900, 10),
        {"weight": 1 / math.sqrt(400), "v": 1 / math.sqrt(900)},
    ),
    "AttentionalState": (
        lambda: luong.AttentionalState(300, 100, 200),
        {"weight": 1 / math.sqrt(400)},
    ),
}


@pytest.mark.parametrize("name", STARTS)
def test_parameters_start_uniform_in_the_documented_range(name):
    make, bounds = STARTS[name]
    torch.manual_seed(0)
    parameters = dict(make().named_parameters())
    for key, bound in bounds.items():
        assert parameters[key].abs().max().item() == pytest.approx(bound, rel=0.02)
        assert parameters[key].std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)


SCORES = [n for n, f in FORMULAS.items() if f.module and not f.window and n[:2] != "g_"]


@pytest.mark.parametrize("name", SCORES)
def test_scaled_starts_equal_to_its_score(name):
    case = next(c for c in CASES if c.way == "module" and c.name.startswith(f"module-{name}-"))
    score = attention_of(case).score
    tensors = case.inputs()[:3]
    scaled = luong.Attention(luong.Scaled(score)).double()
    expected = luong.Attention(score)(*tensors)
    assert_near(scaled(*tensors).context, expected.context)
    assert_near(scaled.score(*tensors[:2]).exp(), score(*tensors[:2]).exp())


def test_attentional_state():
    state = luong.AttentionalState(17, 11, 23).double()
    context, query = torch.randn(3, 5, 17).double(), torch.randn(3, 5, 11).double()
    w_c, w_h = state.weight[:, :17], state.weight[:, 17:]
    expected = torch.tanh(context @ w_c.T + query @ w_h.T).detach()
    assert [tuple(x.shape) for x in state.parameters()] == [(23, 28)]
    assert_near(state(context, query).detach(), expected)
    assert_near(state(context[0, 0], query[0, 0]).detach(), expected[0, 0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = state.float()(context.float(), query.float())
    assert low.dtype == torch.bfloat16
    assert_near(low.double().detach(), expected, 0.02)


REPRS = [
    "ScaledDot(scale=0.5)",
    "General(query_size=11, key_size=13)",
    "Concat(query_size=11, key_size=13, hidden_size=19, bias=True, simplified=False)",
    "Concat(query_size=11, key_size=19, hidden_size=19, bias=False, simplified=True)",
    "Location(query_size=11, max_length=7)",
    "LocalMonotonic(half_width=3)",
    "LocalPredictive(query_size=11, hidden_size=13, half_width=2, renormalize=True)",
    "Causal()",
    "AttentionalState(context_size=17, query_size=11, output_size=23)",
]


@pytest.mark.parametrize("text", REPRS)
def test_repr_is_the_constructor(text):
    assert repr(eval(f"luong.{text}")) == text


def test_repr_of_attention_shows_score_window_and_dropout():
    window = luong.LocalPredictive(11, 3, 2)
    text = repr(luong.Attention(luong.General(11, 13), window=window, dropout=0.1))
    assert "(window): LocalPredictive(query_size=11, hidden_size=3, half_width=2" in text
    assert "General(query_size=11, key_size=13)" in text
    assert "dropout=0.1" in text
