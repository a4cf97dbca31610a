"""Any shapes, masks, lengths and dtypes: each operator equals its reference."""

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from comparing import derivatives
from operator_cases import Case, assert_case_rounded
from operators import FORMULAS, Sizes

sizes = st.builds(
    Sizes,
    n=st.integers(0, 6),
    m=st.integers(0, 6),
    d_q=st.integers(1, 3),
    d_k=st.integers(1, 3),
    d_v=st.integers(0, 3),
    d_a=st.integers(1, 3),
)
batches = st.lists(st.integers(0, 3), max_size=2).map(tuple)


@st.composite
def masks(draw, batch, n, m):
    """A mask with some dimensions 1, lengths with some dimensions left out, or neither."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    given = {}
    if draw(st.booleans()):
        shape = [draw(st.sampled_from([1, size])) for size in (*batch, n, m)]
        given["mask"] = torch.rand(shape, generator=generator) < draw(st.sampled_from([0.2, 0.8]))
    if draw(st.booleans()):
        shape = batch[draw(st.integers(0, len(batch))) :]
        given["lengths"] = torch.randint(0, m + 1, shape, generator=generator)
    return given


@pytest.mark.parametrize("name", FORMULAS)
@hypothesis.settings(deadline=None, max_examples=40, derandomize=True, database=None)
@hypothesis.given(data=st.data())
def test_equals_the_reference(name, data):
    s, batch = data.draw(sizes), data.draw(batches)
    if "location" in name:
        s = s._replace(m=max(s.m, 3))  # the table in this formula has m - 2 rows
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    formula = FORMULAS[name]
    ways = {"function": formula.function, "module": formula.module}
    way = data.draw(st.sampled_from([way for way, call in ways.items() if call]))
    given = data.draw(masks(batch, s.n, s.m)) | {"need_weights": data.draw(st.booleans())}
    case = Case(name, s, way)
    tensors = case.inputs(batch, dtype=dtype, seed=data.draw(st.integers(0, 99)))
    order = data.draw(st.sampled_from([1, 2]))
    if dtype == torch.float32:
        # The error of a score is the relative error of its weight; at sizes this small the plain
        # formula may have none by luck.
        scores = case.scores(tensors[0], tensors[1], *tensors[3:])
        steep = max((scores[scores.isfinite()].abs().max().item() if scores.numel() else 0), 1)
        assert_case_rounded(case, tensors, given, order, factor=steep)
        return
    actual = derivatives(case.call, tensors, order, **given)
    expected = derivatives(case.reference, tensors, order, **given)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
