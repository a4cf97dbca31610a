"""Every operator: values, gradients, dtypes, closed forms, dropout, and the public names."""

import subprocess
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import luong
from comparing import assert_all_near, assert_near, derivatives
from operator_cases import (
    CASES,
    EVERY_KEY,
    Case,
    assert_case_rounded,
    attended,
    cases,
    kinds,
    masking,
    options,
)


def test_every_public_score_is_in_the_table():
    public = {value for name in luong.__all__ if isinstance(value := getattr(luong, name), type)}
    scores = {value for value in public if issubclass(value, luong.Score)} - {luong.Score}
    assert scores <= {type(case.module.score) for case in CASES if case.way == "module"}


# Values


@kinds
@cases
def test_equals_the_formula_pair_by_pair(case, kind):
    tensors, given = case.inputs(), masking(case, kind)
    context, weights = case.oracle(*tensors, **given)
    result = case.call(*tensors, need_weights=True, **given)
    assert_near(result.context, context)
    assert_near(result.weights, weights)
    alone = case.call(*tensors, **given)
    assert alone.weights is None
    assert_near(alone.context, context)


@kinds
@cases
def test_reference_equals_the_formula_pair_by_pair(case, kind):
    tensors, given = case.inputs(), masking(case, kind)
    expected = case.oracle(*tensors, **given)
    assert_all_near(case.reference(*tensors, need_weights=True, **given), expected)


@cases
def test_score_function_equals_the_formula(case):
    tensors = case.inputs()
    scores = case.scores(tensors[0], tensors[1], *tensors[3:])
    query, key, _, *parameters = (x.numpy() for x in tensors)
    parameters = parameters[: case.of_score]
    for b, i, j in [(0, 0, 0), (1, 3, 2), (2, 4, 4), (2, 1, case.sizes.m - 1)]:
        expected = case.formula.score(query[b, i], key[b, j], j, *parameters)
        assert scores[b, i, j].item() == pytest.approx(expected, rel=1e-12)
    assert scores.shape == (3, case.sizes.n, case.sizes.m)


@cases
def test_weights_are_nonnegative_and_sum_to_one_where_something_is_attended(case):
    tensors, given = case.inputs(), masking(case, "empty_row")
    weights = case.call(*tensors, need_weights=True, **given).weights
    pairs = attended(tensors, **given)
    assert weights.min() >= 0
    assert not weights[~pairs].any()
    total, live = weights.sum(-1), pairs.any(-1)
    if case.window is not None:  # a mask may leave nothing in a window
        live = case.oracle(*tensors, **given)[1].any(-1)
    if case.normalised:
        assert_near(total, live.double())
    else:
        assert torch.equal(total > 0, live)
        assert (total[live] < 1).all()


@cases
def test_path(case):
    """The cases called fused do reach the fused kernel, and the others do not."""

    class Log(TorchDispatchMode):
        names = ""

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Log.names += f" {func}"
            return func(*args, **(kwargs or {}))

    with Log():
        case.call(*case.inputs())
    assert ("scaled_dot_product" in Log.names) == case.fused


# Gradients


@pytest.mark.parametrize(("order", "need_weights"), [(1, False), (1, True), (2, False)])
@kinds
@cases
def test_gradients_equal_the_reference(case, kind, order, need_weights):
    tensors, given = case.inputs(), masking(case, kind) | {"need_weights": need_weights}
    actual = derivatives(case.call, tensors, order, **given)
    assert_all_near(actual, derivatives(case.reference, tensors, order, **given), 1e-10)


@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
@cases
def test_gradcheck(case, check):
    sizes = {} if case.fused else {"n": 2, "m": 3, "d_v": 2}
    tensors = [x.requires_grad_() for x in case.inputs((2,), **sizes)]
    n, m = tensors[0].shape[-2], tensors[1].shape[-2]
    mask = options("empty_row", n, m, (2,))["mask"]
    tensors = tensors if case.looks_at_keys else [tensors[0], tensors[1].detach(), *tensors[2:]]
    fast = check is torch.autograd.gradgradcheck or case.fused
    assert check(lambda *x: case.call(*x, mask=mask).context, tensors, fast_mode=fast)


@kinds
@cases
def test_weights_on_request_change_neither_context_nor_gradients(case, kind):
    """Where the fused kernel runs, this also sets it against the dense path."""
    tensors, given = case.inputs(), masking(case, kind)
    dense = derivatives(lambda *x: case.call(*x, need_weights=True, **given)[:1], tensors, 2)
    assert_all_near(derivatives(case.call, tensors, 2, **given), dense, 1e-11)


# Dtypes


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("kind", ["none", "both", "empty_row"])
@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        (case, dtype)
        for case in CASES
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
        if dtype == torch.float32 or not case.jumps  # see test_windows.py for these
    ],
    ids=lambda x: x.name if isinstance(x, Case) else str(x),
)
def test_error_is_at_most_twice_that_of_the_plain_formula(case, kind, need_weights, dtype):
    given = masking(case, kind) | {"need_weights": need_weights}
    assert_case_rounded(case, case.inputs(dtype=dtype), given)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize(
    "case",
    [
        c
        for c in CASES
        if any(f"-{x}-" in c.name for x in ("dot", "scaled_dot", "additive", "location"))
        or "module-g_dot-" in c.name
    ],
    ids=lambda c: c.name,
)
def test_half_types_score_in_float32(case, dtype, need_weights):
    """Large scores, which a half type could not hold to within one."""
    tensors = case.inputs(dtype=dtype)
    steep = [16 * x if i in (0, len(tensors) - 1) and i != 2 else x for i, x in enumerate(tensors)]
    expected = case.call(*(x.float() for x in steep)).context
    context = case.call(*steep, need_weights=need_weights).context
    assert_near(context, expected.to(dtype), 4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@cases
def test_scores_keep_the_dtype(case, dtype):
    query, key, _, *parameters = case.inputs(dtype=dtype)
    scores = case.scores(query, key, *parameters)
    exact = case.scores(query.double(), key.double(), *(x.double() for x in parameters))
    assert scores.dtype == dtype
    tolerance = 8 * torch.finfo(dtype).eps * exact[exact.isfinite()].abs().max().item()
    torch.testing.assert_close(scores.double(), exact, rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", ["none", "both"])
@cases
def test_autocast_equals_inputs_of_its_dtype(case, kind):
    tensors, given = case.inputs(dtype=torch.float32), masking(case, kind)
    low = derivatives(case.call, [x.bfloat16() for x in tensors], **given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        context, *gradients = derivatives(case.call, tensors, **given)
        weights = case.call(*tensors, need_weights=True, **given).weights
    assert context.dtype == weights.dtype == torch.bfloat16
    assert_near(context, low[0], 4 * torch.finfo(torch.bfloat16).eps)
    bound = 8 * torch.finfo(torch.bfloat16).eps * max(x.abs().max().item() for x in low[1:])
    for one, other in zip(gradients, low[1:], strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.bfloat16(), other, rtol=0, atol=bound)


@pytest.mark.parametrize("case", [c for c in CASES if c.way == "function"], ids=lambda c: c.name)
def test_autocast_leaves_float64_alone(case):
    tensors = case.inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        context = case.call(*tensors).context
    assert torch.equal(context, case.call(*tensors).context)


# Closed forms


def test_two_keys_give_a_sigmoid():
    query, key = torch.tensor([[0.3, -0.8]]), torch.tensor([[1.0, 2.0], [-0.5, 0.7]])
    query, key = query.double(), key.double()
    weights = luong.dot_attention(query, key, key, need_weights=True).weights
    assert weights is not None
    assert_near(weights[0, 0], torch.sigmoid((key[0] - key[1]) @ query[0]))


@pytest.mark.parametrize("case", EVERY_KEY, ids=lambda c: c.name)
def test_equal_keys_give_the_mean_of_the_values(case):
    query, key, value, *parameters = case.inputs()
    lengths = torch.tensor([4, case.sizes.m, 1])
    context = case.call(query, key[:, :1].expand_as(key), value, *parameters, lengths=lengths)[0]
    for b, m in enumerate(lengths.tolist()):
        assert_near(context[b], value[b, :m].mean(0).expand_as(context[b]))


@pytest.mark.parametrize("n", [5, 41])
def test_equals_multihead_attention_with_identity_projections(n):
    width = 7
    theirs = torch.nn.MultiheadAttention(width, 1, bias=False, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.eye(width).repeat(3, 1))
        theirs.out_proj.weight.copy_(torch.eye(width))
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(3, n, width, generator=generator, dtype=torch.float64)
    key, value = torch.randn(2, 3, 43, width, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([43, 20, 1])
    padding = torch.arange(43) >= lengths[:, None]
    with torch.no_grad():
        context, weights = theirs(query, key, value, key_padding_mask=padding)
    ours = luong.scaled_dot_attention(query, key, value, lengths=lengths, need_weights=True)
    assert_all_near(ours, [context, weights])
    assert_near(luong.scaled_dot_attention(query, key, value, lengths=lengths).context, context)


# Functions that drop


@pytest.mark.parametrize("case", [c for c in CASES if c.way == "function"], ids=lambda c: c.name)
def test_dropout_of_functions_is_seeded_and_leaves_weights_alone(case):
    tensors = case.inputs()
    plain = case.call(*tensors, need_weights=True)
    torch.manual_seed(4)
    context, weights = case.call(*tensors, dropout=0.5, need_weights=True)
    torch.manual_seed(4)
    assert torch.equal(case.call(*tensors, dropout=0.5).context, context)
    assert_near(weights, plain.weights)
    assert (context - plain.context).abs().max() > 0.05


# The public names


def test_every_public_name_is_there():
    assert "general_attention" in luong.__all__
    assert all(getattr(luong, name) is not None for name in luong.__all__)
    assert set(luong.__all__) <= set(dir(luong))


def test_import_does_not_load_torch():
    code = "import sys, luong; luong.__version__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
