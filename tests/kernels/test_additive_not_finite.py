"""What is not finite gives what the formula gives, and reaches nobody who may not attend to it."""

import pytest
import torch

import luong
from additive_cases import INF, NAN, every_backend, gradients, inputs, normal
from comparing import assert_all_near, derivatives
from luong import reference


@pytest.mark.parametrize("bad", [INF, -INF, NAN])
@pytest.mark.parametrize("where", ["query", "key", "v", "query and key"])
@every_backend
def test_scores_of_what_is_not_finite_are_those_of_the_formula(backend, where, bad):
    for n, m in ((1, 1), (1, 7), (5, 7), (9, 4)):
        query, key, _, v = inputs(n, m)
        if "query" in where:
            query[1, n // 2, 3] = bad
        if "key" in where:
            key[1, m // 2, 3] = -bad
        if where == "v":
            v[3] = bad
        given = normal(3, n, m, seed=4)

        def ours(*x):
            return luong.additive_score(*x, backend=backend)

        actual = gradients(ours, (query, key, v), given)
        expected = gradients(reference.additive_score, (query, key, v), given)
        for one, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14, equal_nan=True)


@pytest.mark.parametrize("bad", [INF, -INF, NAN])
@pytest.mark.parametrize("where", ["query", "key", "value", "v"])
@pytest.mark.parametrize("masked", [False, True])
@every_backend
def test_attention_to_what_is_not_finite_is_that_of_the_formula(backend, masked, where, bad):
    query, key, value, v = tensors = inputs()
    given = {"mask": normal(3, 5, 7, seed=2) < 0.7} if masked else {}
    if masked:
        given["mask"][1, 2, 4] = True
    {"query": query[1, 2], "key": key[1, 4], "value": value[1, 4], "v": v}[where][1] = bad

    def ours(*x):
        return luong.additive_attention(*x, backend=backend, **given).context

    def plain(*x):
        return reference.additive_attention(*x, **given)[0]

    incoming = normal(3, 5, 3, seed=4)
    actual, expected = (gradients(f, tensors, incoming) for f in (ours, plain))
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14, equal_nan=True)
    assert expected[0].isfinite().all() == (where in ("query", "key") and abs(bad) == INF)


@pytest.mark.parametrize("bad", [INF, NAN, 1e300])
@pytest.mark.parametrize("n", [1, 6])
@every_backend
def test_what_is_behind_the_mask_comes_out_nowhere(backend, n, bad):
    query, key, value, v = inputs(n)
    lengths, mask = torch.tensor([7, 3, 0]), torch.ones(3, n, 7, dtype=torch.bool)
    mask[0, :, 2], mask[1, n // 2] = False, False
    given = {"mask": mask, "lengths": lengths, "backend": backend}
    unseen = ~(mask & (torch.arange(7) < lengths[:, None, None]))

    def all_of(fill):
        q = query.masked_fill(unseen.all(-1, keepdim=True), fill)
        k, x = (y.masked_fill(unseen.all(1)[..., None], fill) for y in (key, value))
        return derivatives(luong.additive_attention, (q, k, x, v), **given)

    dirty = all_of(bad)
    assert_all_near(dirty, all_of(0.5), 0.0)
    assert all(x.isfinite().all() for x in dirty)


def test_a_query_that_is_nan_reaches_no_key_that_it_may_not_attend():
    query, key, value, v = inputs()
    query[1, 2, 3] = NAN
    mask = torch.ones(3, 5, 7, dtype=torch.bool)
    mask[1, 2, 4] = False
    leaf = key.requires_grad_()
    context, _ = luong.additive_attention(query, leaf, value, v, mask=mask, backend="numba")
    (slope,) = torch.autograd.grad(context.sum(), leaf)
    assert slope[1, 4].isfinite().all()
    assert slope[1, :4, 3].isnan().all()
