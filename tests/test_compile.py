"""torch.compile and torch.export: same numbers, one graph, any batch and any length."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.export import Dim

from operators import (
    CASES,
    DENSE,
    FUSED,
    Case,
    assert_all_near,
    assert_near,
    derivatives,
    hide,
    options,
)

SIZED = [case for case in CASES if case.sizes in (DENSE, FUSED)]
STEPS = [case for case in SIZED if case.way == "module"]
# dynamo looks at `.grad` of every tensor that comes in, and torch warns where that is no leaf
looks_at_grad = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
# inductor imports modules of torch that torch itself has deprecated
imports_jit = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    torch._dynamo.reset()


def loaded(case, tensors):
    """The module of `case` with the parameters of `tensors`, and the other tensors."""
    module = case.attention().to(tensors[0].dtype)
    module.load_state_dict(dict(zip(case.parameters, tensors[3:], strict=True)))
    return module, tensors[:3]


@pytest.mark.parametrize(
    ("case", "kind", "need_weights"),
    [(case, "length_0", False) for case in SIZED]
    + [(case, "both", True) for case in SIZED]
    + [(case, "empty_row", False) for case in SIZED if case.fused],
    ids=lambda x: x.name if isinstance(x, Case) else str(x),
)
def test_fullgraph(case, kind, need_weights):
    tensors, given = case.inputs(), options(kind, case.sizes.n, case.sizes.m)
    compiled = torch.compile(case.call, fullgraph=True, backend="aot_eager")
    dirty = hide(tensors, float("nan"), **given)
    actual = derivatives(compiled, dirty, need_weights=need_weights, **given)
    expected = derivatives(case.call, tensors, need_weights=need_weights, **given)
    assert_all_near(actual, expected, 1e-12)


@pytest.mark.parametrize(
    "case",
    [case for case in SIZED if case.way == "module" or case.formula.module is None],
    ids=lambda case: case.name,
)
def test_one_compilation_serves_all_sizes(case):
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(case.call, fullgraph=True, backend=counter, dynamic=True)
    n, m, *_ = case.sizes
    for batch, length in [(23, m + 8), (23, m), (31, m + 4), (29, n + 1)]:
        tensors = case.inputs((batch,), m=length)
        given = options("both", n, length, (batch,))
        assert_near(compiled(*tensors, **given).context, case.call(*tensors, **given).context)
    assert counter.frame_count == 1


def compare_with_inductor(case):
    tensors, given = case.inputs(dtype=torch.float32), options("both", *case.sizes[:2])
    compiled = torch.compile(case.call, fullgraph=True)
    actual = derivatives(compiled, tensors, need_weights=True, **given)
    assert_all_near(actual, derivatives(case.call, tensors, need_weights=True, **given), 1e-5)


@imports_jit
def test_inductor():
    compare_with_inductor(next(c for c in CASES if c.name == "function-concat_bias-n5m7"))


@pytest.mark.slow
@imports_jit
@pytest.mark.parametrize("case", SIZED, ids=lambda case: case.name)
def test_inductor_on_every_operator(case):
    compare_with_inductor(case)


@looks_at_grad
@pytest.mark.parametrize("case", STEPS, ids=lambda case: case.name)
def test_decoder_steps(case):
    attention, (query, key, value) = loaded(case, case.inputs())
    lengths = torch.tensor([case.sizes.m, 3, 0])
    prepare = torch.compile(attention.prepare, fullgraph=True, backend="aot_eager")
    attend = torch.compile(attention.attend, fullgraph=True, backend="aot_eager")
    memory = prepare(key, value, lengths=lengths)
    for i in range(3):
        step = attend(query[:, i : i + 1], memory, **case.at(i)).context
        one = query[:, i : i + 1]
        expected = attention(one, key, value, lengths=lengths, **case.at(i)).context
        assert_near(step, expected, 1e-12)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", ["lengths", "mask_b1m"])
@pytest.mark.parametrize("case", STEPS, ids=lambda case: case.name)
def test_export(case, kind, strict):
    attention, tensors = loaded(case, case.inputs())
    n, m, *_ = case.sizes
    given = options(kind, n, m)
    dynamic = {"query": [0], "key": [0, 1], "value": [0, 1], "lengths": [0], "mask": [0, 2]}
    program = torch.export.export(
        attention,
        tuple(tensors),
        given,
        dynamic_shapes={
            name: dict.fromkeys(dynamic[name], Dim.AUTO)
            for name in ("query", "key", "value", *given)
        },
        strict=strict,
    ).module()
    for batch, length in [(3, m), (5, m + 8), (2, 3)]:  # (3: fewer keys than queries)
        query, key, value, *_ = case.inputs((batch,), m=length)
        given = options(kind, n, length, (batch,))
        expected = attention(query, key, value, **given).context
        assert_near(program(query, key, value, **given).context, expected)
