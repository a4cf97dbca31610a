"""Every operator, crossed with masks, dtypes, shapes, strides and transforms."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.func import grad, vmap
from torch.utils._python_dispatch import TorchDispatchMode

import luong
from operators import (
    CASES,
    KINDS,
    Case,
    assert_all_near,
    assert_case_rounded,
    assert_near,
    attended,
    combine,
    derivatives,
    hide,
    options,
    probe,
)
from rounding import assert_rounded

# where a key counts the same wherever it stands
EVERY_KEY = [case for case in CASES if case.looks_at_keys and case.window is None]

cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
kinds = pytest.mark.parametrize("kind", KINDS)


def masking(case: Case, kind: str, batch: tuple[int, ...] = (3,)) -> dict[str, torch.Tensor]:
    return options(kind, case.sizes.n, case.sizes.m, batch)


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


# Masks and lengths: `test_equals_the_formula_pair_by_pair` has each kind's values


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("kind", ["length_0", "mask_b1m", "empty_row", "empty_column", "nothing"])
@cases
def test_what_nobody_attends_to_may_hold_anything(case, kind, order, bad):
    tensors, given = case.inputs(), masking(case, kind)
    dirty = hide(tensors, bad, **given)
    assert not all(x.isfinite().all() for x in dirty)
    clean = hide(tensors, 3.0, **given)
    assert_all_near(
        derivatives(case.call, dirty, order, **given),
        derivatives(case.call, clean, order, **given),
    )


@pytest.mark.parametrize("case", [c for c in CASES if "-location-" in c.name], ids=lambda c: c.name)
def test_location_attends_to_nothing_past_its_table(case):
    query, key, value, weight = case.inputs()
    m_max = weight.shape[0]
    expected = derivatives(case.call, [query, key[:, :m_max], value[:, :m_max], weight])
    key[:, m_max:], value[:, m_max:] = float("nan"), float("nan")
    context, d_query, _, d_value, d_weight = derivatives(case.call, [query, key, value, weight])
    assert not d_value[:, m_max:].any()
    actual = [context, d_query, d_value[:, :m_max], d_weight]
    assert_all_near(actual, [expected[i] for i in (0, 1, 3, 4)])


@pytest.mark.parametrize("need_weights", [False, True])
@cases
def test_empty_rows_give_zero_and_zero_gradients(case, need_weights):
    tensors, given = case.inputs(), masking(case, "empty_row")
    dirty = hide(tensors, float("nan"), **given)
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way either
        context, d_query, *rest = derivatives(case.call, dirty, need_weights=need_weights, **given)
    empty = ~attended(tensors, **given).any(-1)
    assert empty.any()
    assert not context[empty].any()
    assert not d_query[empty].any()
    assert all(x.isfinite().all() for x in rest)


BATCHES = [  # of query, key, value
    ((), (), ()),
    ((2, 3), (2, 3), (2, 3)),
    ((), (3,), (3,)),
    ((3,), (), ()),
    ((2, 1), (3,), (3,)),
    ((2, 3), (1, 3), (2, 1)),
    ((), (), (3,)),
]


@pytest.mark.parametrize("kind", ["none", "lengths", "mask", "empty_row", "empty_column"])
@pytest.mark.parametrize("batches", BATCHES, ids=str)
@cases
def test_batch_dimensions_broadcast(case, batches, kind):
    tensors = case.inputs(*batches)
    batch = tuple(torch.broadcast_shapes(*batches))
    given = masking(case, kind, batch)
    context, weights = case.oracle(*tensors, **given)
    result = case.call(*tensors, need_weights=True, **given)
    assert_near(result.context, context)
    assert_near(result.weights, weights)
    actual = derivatives(case.call, tensors, **given)
    assert_all_near(actual, derivatives(case.reference, tensors, **given), 1e-12)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 3), (2, 1), (2, 3)], ids=str)
@cases
def test_lengths_broadcast(case, shape):
    tensors = case.inputs((2, 3))
    lengths = torch.arange(6)[: torch.Size(shape).numel()].reshape(shape)
    expected = case.call(*tensors, lengths=lengths.expand(2, 3))
    assert_near(case.call(*tensors, lengths=lengths).context, expected.context)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_lengths_of_any_integer_type(dtype):
    case = CASES[0]
    tensors, lengths = case.inputs(), torch.tensor([1, 5, 7])
    expected = case.call(*tensors, lengths=lengths).context
    assert torch.equal(case.call(*tensors, lengths=lengths.to(dtype)).context, expected)


# Rows are independent


dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])


def assert_all_equal_the_formula(found, case, tensors, **given):
    """Contexts, or contexts and weights: in float32 to the rule of rounding.py."""
    exact = case.reference(*(x.double() for x in tensors), need_weights=True, **given)
    plain = case.reference(*tensors, need_weights=True, **given)
    for each in found:
        if tensors[0].dtype == torch.float64:
            assert_all_near(each, exact[: len(each)])
        else:
            assert_rounded(each, plain[: len(each)], exact[: len(each)])


@dtypes
@cases
def test_padding_equals_removal(case, dtype):
    query, key, value, *parameters = case.inputs(dtype=dtype)
    lengths = torch.tensor([case.sizes.m, 4, 1])
    context, weights = case.call(query, key, value, *parameters, lengths=lengths, need_weights=True)
    for b, m in enumerate(lengths.tolist()):
        alone = [query[b : b + 1], key[b : b + 1, :m], value[b : b + 1, :m], *parameters]
        both, padded = case.call(*alone, need_weights=True), context[b : b + 1]
        found = [both, [padded, weights[b : b + 1, :, :m]], [case.call(*alone).context]]
        assert_all_equal_the_formula(found, case, alone)


@dtypes
@cases
def test_batch_mates_change_nothing(case, dtype):
    tensors, others = case.inputs(dtype=dtype), case.inputs(dtype=dtype, seed=5)
    given = masking(case, "both")
    mixed = [torch.cat([x[:1], 100 * y[1:]]) for x, y in zip(tensors[:3], others, strict=False)]
    alone = {name: x[:1] for name, x in given.items()}
    single = [*(x[:1] for x in tensors[:3]), *tensors[3:]]
    contexts = [case.call(*x, **given).context[:1] for x in (tensors, [*mixed, *tensors[3:]])]
    found = [[x] for x in (*contexts, case.call(*single, **alone).context)]
    assert_all_equal_the_formula(found, case, single, **alone)


@dtypes
@cases
def test_a_query_alone_equals_it_among_others(case, dtype):
    query, *rest = case.inputs(dtype=dtype)
    mask = masking(case, "mask")["mask"]
    context = case.call(query, *rest, mask=mask).context
    for i in range(case.sizes.n):
        one = {"mask": mask[:, i : i + 1]} | case.at(i)
        row = [query[:, i : i + 1], *rest]
        found = [[case.call(*row, **one).context], [context[:, i : i + 1]]]
        assert_all_equal_the_formula(found, case, row, **one)


@pytest.mark.parametrize("case", EVERY_KEY, ids=lambda c: c.name)
def test_permuting_sources_permutes_weights(case):
    query, key, value, *parameters = case.inputs()
    order = torch.randperm(case.sizes.m, generator=torch.Generator().manual_seed(2))
    mask = masking(case, "mask")["mask"]
    context, weights = case.call(query, key, value, *parameters, mask=mask, need_weights=True)
    moved = [query, key[:, order], value[:, order], *parameters]
    result = case.call(*moved, mask=mask[..., order], need_weights=True)
    assert_near(result.weights, weights[..., order])
    assert_near(result.context, context)
    assert_near(case.call(*moved, mask=mask[..., order]).context, context)


# Zero sizes and strides


@pytest.mark.parametrize("sizes", [{"batch": (0,)}, {"n": 0}, {"m": 0}, {"d_v": 0}], ids=str)
@pytest.mark.parametrize("masked", [False, True])
@cases
def test_zero_sizes(case, sizes, masked):
    tensors = case.inputs(**sizes)
    batch, n, m = tensors[0].shape[0], tensors[0].shape[1], tensors[1].shape[1]
    given: dict[str, Any] = {"need_weights": True}
    if masked:
        given["mask"] = torch.ones(batch, n, m, dtype=torch.bool)
        given["lengths"] = torch.full((batch,), min(m, 2))
    context, weights, *gradients = derivatives(case.call, tensors, 2, **given)
    assert context.shape == (batch, n, tensors[2].shape[-1])
    assert weights.shape == (batch, n, m)
    assert_all_near([context, weights], case.oracle(*tensors, **masks_of(given)))
    assert all(x.isfinite().all() for x in gradients)
    assert_near(case.call(*tensors, **masks_of(given)).context, context)


def masks_of(given):
    return {name: x for name, x in given.items() if name != "need_weights"}


LAYOUTS = {
    "transposed": lambda x: x.mT.contiguous().mT if x.ndim > 1 else x,
    "strided": lambda x: x.repeat_interleave(2, -1)[..., ::2] if x.ndim else x,
    "batch_last": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0) if x.ndim > 1 else x,
    "expanded": lambda x: x[:1].expand_as(x) if x.ndim > 2 else x,
    "expanded_width": lambda x: x[..., :1].expand_as(x) if x.ndim > 2 else x,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("order", [1, 2])
@cases
def test_layout_in_memory_changes_nothing(case, layout, order):
    tensors, given = case.inputs(), masking(case, "both")
    move = LAYOUTS[layout]
    assert not move(tensors[0]).is_contiguous()

    def moved(*x):
        return case.call(*map(move, x), **given)

    def copied(*x):
        return case.call(*(move(y).contiguous() for y in x), **given)

    assert_all_near(derivatives(moved, tensors, order), derivatives(copied, tensors, order), 1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
@cases
def test_layout_of_the_incoming_gradient_changes_nothing(case, layout):
    leaves = [x.requires_grad_() for x in case.inputs()]
    context = case.call(*leaves, **masking(case, "both")).context
    given = LAYOUTS[layout](probe(context))
    assert not given.is_contiguous()
    how = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    actual = torch.autograd.grad(context, leaves, given, **how)
    expected = torch.autograd.grad(context, leaves, given.contiguous(), **how)
    assert_all_near(actual, expected, 1e-12)


# vmap and grad


@pytest.mark.parametrize("kind", ["none", "lengths", "mask", "empty_row", "length_0"])
@cases
def test_vmap_equals_a_batch(case, kind):
    query, key, value, *parameters = case.inputs()
    given = masking(case, kind)
    expected = case.call(query, key, value, *parameters, need_weights=True, **given)

    def both(query, key, value, given):
        return tuple(case.call(query, key, value, *parameters, need_weights=True, **given))

    def context(query, key, value, given):
        return case.call(query, key, value, *parameters, **given).context

    q, k, x = hide([query, key, value], float("nan"), **given)
    assert_all_near(vmap(both)(q, k, x, given), expected)
    assert_near(vmap(context)(q, k, x, given), expected.context)
    inner = vmap(context, in_dims=(0, None, None, None))  # a batch inside: lengths of all
    one = {name: x[1] for name, x in given.items()}
    shared = case.call(
        query,
        key[1].expand_as(key),
        value[1].expand_as(value),
        *parameters,
        **{name: x[1].expand_as(x) for name, x in given.items()},
    )
    assert_near(inner(query, key[1], value[1], one), shared.context)


@pytest.mark.parametrize("case", [c for c in CASES if c.parameters], ids=lambda c: c.name)
def test_vmap_over_parameters(case):
    tensors, others = case.inputs(), case.inputs(seed=7)
    stacked = [torch.stack(pair) for pair in zip(tensors[3:], others[3:], strict=True)]

    def context(*parameters):
        return case.call(*tensors[:3], *parameters).context

    expected = torch.stack([context(*tensors[3:]), context(*others[3:])])
    assert_near(vmap(context)(*stacked), expected)


@cases
def test_vmap_of_scores(case):
    query, key, _, *parameters = case.inputs()
    expected = case.scores(query, key, *parameters)
    mapped = vmap(lambda q, k: case.scores(q, k, *parameters))
    assert_near(mapped(query, key).exp(), expected.exp())


@pytest.mark.parametrize("kind", ["none", "both", "empty_row"])
@cases
def test_func_grad_and_vmap_of_it(case, kind):
    tensors, given = case.inputs(), masking(case, kind)

    def loss(*x, **given):
        return combine([case.call(*x, **given).context])

    which = tuple(range(len(tensors)))
    gradients = grad(loss, argnums=which)(*tensors, **given)
    assert_all_near(gradients, derivatives(case.call, tensors, **given)[1:])
    rows = vmap(
        lambda query, key, value, given: grad(loss, argnums=which)(
            query, key, value, *tensors[3:], **given
        )
    )(tensors[0], tensors[1], tensors[2], given)
    for b in range(3):
        row = [x[b] for x in tensors[:3]]
        one = {name: x[b] for name, x in given.items()}
        expected = derivatives(case.call, [*row, *tensors[3:]], **one)[1:]
        assert_all_near([x[b] for x in rows], expected, 1e-12)


@cases
def test_backward_through_vmap(case):
    tensors, given = case.inputs(), masking(case, "both")

    def mapped(query, key, value, *parameters):
        return [
            vmap(lambda q, k, v, o: case.call(q, k, v, *parameters, **o).context)(
                query, key, value, given
            )
        ]

    expected = derivatives(case.call, tensors, 2, **given)
    assert_all_near(derivatives(mapped, tensors, 2), expected, 1e-12)


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
