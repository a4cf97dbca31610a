"""Every operator under `vmap`, and under `grad` of torch.func."""

import pytest
import torch
from torch.func import grad, vmap

from comparing import assert_all_near, assert_near, combine, derivatives
from operator_cases import CASES, cases, hide, masking


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
