"""Every operator with masks, lengths and batches: no row depends on padding or on its mates."""

import pytest
import torch

from comparing import assert_all_near, assert_near, derivatives
from operator_cases import (
    CASES,
    EVERY_KEY,
    attended,
    cases,
    hide,
    masking,
)
from rounding import assert_rounded

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
