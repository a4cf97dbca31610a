"""torch.compile and torch.export: same numbers, one graph, any batch and any length."""

import pytest
import torch
from operators import (
    CASES,
    DENSE,
    FUSED,
    MODULES,
    assert_all_near,
    assert_near,
    derivatives,
    options,
)
from torch._dynamo.testing import CompileCounterWithBackend
from torch.export import Dim

import luong

LARGER = {DENSE: {"m": 19}, FUSED: {"m": 23}}


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    torch._dynamo.reset()


def loaded(case, tensors):
    """The module of `case` with the parameters of `tensors`, and the other tensors."""
    module = luong.Attention(case.formula.module(case.sizes)).to(tensors[0].dtype)
    named = dict(zip(case.parameters, tensors[3:], strict=True))
    module.load_state_dict({f"score.{name}": x for name, x in named.items()})
    return module, tensors[:3]


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("kind", ["lengths", "both"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_fullgraph(case, kind, need_weights):
    tensors = case.inputs()
    given = options("length_0" if kind == "lengths" else kind, case.sizes.n, case.sizes.m)
    compiled = torch.compile(case.call, fullgraph=True, backend="aot_eager")
    actual = derivatives(compiled, tensors, need_weights=need_weights, **given)
    expected = derivatives(case.call, tensors, need_weights=need_weights, **given)
    assert_all_near(actual, expected, 1e-12)


@pytest.mark.parametrize("kind", ["none", "lengths", "both", "empty_row"])
@pytest.mark.parametrize("case", [c for c in CASES if c.sizes in LARGER], ids=lambda c: c.name)
def test_one_compilation_serves_all_lengths(case, kind):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(case.call, fullgraph=True, backend=counter, dynamic=True)
    for batch in (3, 5):
        for more in range(3):
            tensors = case.inputs((batch,), m=case.sizes.m + 2 * more)
            given = options(kind, case.sizes.n, case.sizes.m + 2 * more, (batch,))
            expected = case.call(*tensors, **given).context
            assert_near(compiled(*tensors, **given).context, expected, 1e-12)
    assert counter.frame_count == 1


def test_inductor():
    case = next(c for c in CASES if c.name == "function-concat_bias-n5m7")
    tensors, given = case.inputs(dtype=torch.float32), options("both", 5, 7)
    compiled = torch.compile(case.call, fullgraph=True)
    actual = derivatives(compiled, tensors, need_weights=True, **given)
    assert_all_near(actual, derivatives(case.call, tensors, need_weights=True, **given), 1e-5)


@pytest.mark.parametrize("case", MODULES, ids=lambda c: c.name)
def test_decoder_steps(case):
    attention, (query, key, value) = loaded(case, case.inputs())
    lengths = torch.tensor([case.sizes.m, 3, 0])
    prepare = torch.compile(attention.prepare, fullgraph=True, backend="aot_eager")
    attend = torch.compile(attention.attend, fullgraph=True, backend="aot_eager")
    memory = prepare(key, value, lengths=lengths)
    for i in range(3):
        step = attend(query[:, i : i + 1], memory).context
        expected = attention(query[:, i : i + 1], key, value, lengths=lengths).context
        assert_near(step, expected, 1e-12)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", ["none", "lengths", "mask_b1m"])
@pytest.mark.parametrize("case", MODULES, ids=lambda c: c.name)
def test_export(case, kind, strict):
    attention, tensors = loaded(case, case.inputs())
    given = options(kind, case.sizes.n, case.sizes.m)
    batch, m = Dim.AUTO, Dim.AUTO
    shapes = {"query": {0: batch}, "key": {0: batch, 1: m}, "value": {0: batch, 1: m}}
    shapes |= {"lengths": {0: batch}, "mask": {0: batch, 2: m}}
    program = torch.export.export(
        attention,
        tuple(tensors),
        given,
        dynamic_shapes={name: shapes[name] for name in ("query", "key", "value", *given)},
        strict=strict,
    ).module()
    for size, length in [(3, case.sizes.m), (5, case.sizes.m + 4), (2, case.sizes.m + 9)]:
        tensors = case.inputs((size,), m=length)[:3]
        given = options(kind, case.sizes.n, length, (size,))
        expected = attention(*tensors, **given).context
        assert_near(program(*tensors, **given).context, expected, 1e-12)
