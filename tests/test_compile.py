"""torch.compile and torch.export: same numbers, one graph, any batch and any length."""

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.export import Dim

import luong
import windows
from comparing import assert_all_near, assert_near, derivatives
from luong.seq2seq import Settings, build
from operator_cases import CASES, Case, assert_case_rounded, hide, options
from operators import DENSE, FUSED, windowed
from rounding import assert_rounded

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


def row(*values, fast):
    """A row of parameters: a test without a mark if it is fast, else a slow one."""
    return pytest.param(*values, marks=() if fast else pytest.mark.slow)


def also_a_module(case):
    return case.way == "function" and case.formula.module is not None


@pytest.mark.parametrize(
    ("case", "kind", "need_weights"),
    # a module calls the function: each score is compiled both ways, with one kind of mask each
    [row(case, "length_0", False, fast=case.way == "function" or case.window) for case in SIZED]
    + [row(case, "both", True, fast=not also_a_module(case)) for case in SIZED]
    + [row(case, "empty_row", False, fast=True) for case in SIZED if case.fused],
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
    [case for case in SIZED if not also_a_module(case)],
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
    assert_case_rounded(case, tensors, given | {"need_weights": True}, call=compiled)


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


@pytest.mark.parametrize(
    ("case", "kind", "strict"),
    [
        row(case, kind, strict, fast=(kind == "lengths") == strict)
        for case in STEPS
        for kind in ("lengths", "mask_b1m")
        for strict in (False, True)
    ],
    ids=lambda x: x.name if isinstance(x, Case) else str(x),
)
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


# Windows


def windowed_case(score, window):
    formula = windowed(score, window) if window else None
    return Case(score, DENSE, "module", formula)


WINDOWS = {
    "local_m": windows.monotonic(2),
    "local_p": windows.predictive(2),
    "local_p_renormalized": windows.predictive(2, renormalize=True),
    "causal": windows.causal(),
}
ROWS = {  # the position of each batch row
    "int": lambda batch, i: 3 + i,
    "row": lambda batch, i: i + torch.arange(batch)[:, None],
}


@pytest.mark.parametrize(
    ("score", "name"),
    [("dot", name) for name in WINDOWS] + [("concat", "local_m"), ("location", "local_m")],
)
@pytest.mark.parametrize("kind", ROWS)
def test_one_compilation_serves_all_lengths_and_positions(score, name, kind):
    case = windowed_case(score, WINDOWS[name])
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(case.call, fullgraph=True, backend=counter, dynamic=True)
    for i, (batch, length) in enumerate([(23, 9), (23, 4), (31, 16), (29, 3), (7, 2)]):
        tensors = case.inputs((batch,), m=length)
        lengths = options("lengths", case.sizes.n, length, (batch,))
        given = lengths | {"position": ROWS[kind](batch, 3 * i)}
        actual = compiled(*tensors, need_weights=True, **given)
        assert_all_near(actual, case.call(*tensors, need_weights=True, **given))
    assert counter.frame_count <= (2 if kind == "int" else 1)  # an int starts as a constant


class Step(nn.Module):
    """What is exported for a decoder: one step from what `prepare` made."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, query, memory, position):
        return self.attention.attend(query, memory, position=position).context


class Whole(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, query, key, value, lengths, position):
        found = self.attention(query, key, value, lengths=lengths, position=position)
        return found.context


EXPORTED = [
    (score, name)
    for score in ("dot", "general", "concat", "location")
    for name in ("global", "local_m", "local_p", "local_p_renormalized")
]


def exported(score, name, dtype=torch.float64):
    """An attention, and the inputs of a step: query, key, value, lengths, position."""
    case = windowed_case(score, WINDOWS.get(name))
    attention, _ = loaded(case, case.inputs(dtype=dtype))

    def inputs(batch, m, seed=0):
        query, key, value, *_ = case.inputs((batch,), dtype=dtype, n=1, m=m, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(1, m + 1, (batch,), generator=generator)
        lengths[0] = 0
        return query, key, value, lengths, torch.randint(0, m + 2, (batch, 1), generator=generator)

    return attention, inputs


@pytest.mark.parametrize(("score", "name"), EXPORTED)
def test_a_decoder_step_exports(score, name):
    attention, inputs = exported(score, name)

    def step(*sizes):
        query, key, value, lengths, position = inputs(*sizes)
        with torch.no_grad():
            memory = attention.prepare(key, value, lengths=lengths)
        return query, memory._replace(prepared=None), position

    given = step(3, 7)
    m = {"key": [0, 1], "value": [0, 1], "mask": [0, 2]}
    memory = luong.Memory(
        **{
            field: dict.fromkeys(m.get(field, [0]), Dim.AUTO)
            for field, x in given[1]._asdict().items()
            if isinstance(x, torch.Tensor)
        }
    )
    program = torch.export.export(
        Step(attention),
        given,
        dynamic_shapes=({0: Dim.AUTO}, memory, {0: Dim.AUTO}),
    ).module()
    for sizes in [(3, 7), (5, 15), (2, 3), (4, 2)]:
        query, memory, position = step(*sizes, 5)
        expected = attention.attend(query, memory, position=position).context
        assert_near(program(query, memory, position), expected)


class FlatStep(nn.Module):
    """`Step` with the memory as separate inputs."""

    def __init__(self, attention):
        super().__init__()
        self.step = Step(attention)

    def forward(self, query, key, value, mask, lengths, position):
        return self.step(query, luong.Memory(key, value, mask, lengths), position)


NAMES = {
    Whole: ("query", "key", "value", "lengths", "position"),
    FlatStep: ("query", "key", "value", "mask", "lengths", "position"),
}
AT_ONCE = {(Whole, "general", "local_p"), (FlatStep, "concat", "local_m")}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore:# The axis name:UserWarning")
@pytest.mark.parametrize(
    ("what", "score", "name"),
    [row(what, *pair, fast=(what, *pair) in AT_ONCE) for what in NAMES for pair in EXPORTED],
)
def test_onnx(what, score, name, tmp_path):
    """By PyTorch's own exporter, checked by the runtime that people deploy on."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    attention, inputs = exported(score, name, torch.float32)
    exact = copy.deepcopy(attention).double()

    def given(*sizes):
        found = inputs(*sizes)
        plain = Whole(attention)(*found)
        true = Whole(exact)(*(x.double() if x.is_floating_point() else x for x in found))
        query, key, value, lengths, position = found
        if what is Whole:
            return plain, true, found
        with torch.no_grad():
            memory = attention.prepare(key, value, lengths=lengths)
        return plain, true, (query, *memory[:4], position)

    batch, m, names = Dim("batch"), Dim("m"), NAMES[what]
    dynamic = {"key": {0: batch, 1: m}, "value": {0: batch, 1: m}, "mask": {0: batch, 2: m}}
    torch.onnx.export(
        what(attention).eval(),
        given(3, 7)[-1],
        tmp_path / "attention.onnx",
        dynamo=True,
        verbose=False,
        input_names=names,
        output_names=["context"],
        dynamic_shapes={name: dynamic.get(name, {0: batch}) for name in names},
    )
    session = onnxruntime.InferenceSession(tmp_path / "attention.onnx")
    taken = {x.name for x in session.get_inputs()}
    for seed, sizes in enumerate([(3, 7), (5, 15), (2, 3), (4, 2), (64, 50)]):
        plain, true, tensors = given(*sizes, seed)
        named = {x: y.numpy() for x, y in zip(names, tensors, strict=True) if x in taken}
        (context,) = session.run(["context"], named)
        assert_rounded([torch.from_numpy(context)], [plain], [true])


@imports_jit
@looks_at_grad
@pytest.mark.parametrize(
    "shape",
    [
        {},
        pytest.param(
            {
                "cell": "gru",
                "reverse_source": True,
                "bidirectional": False,
                "attend_end": True,
                "encoder_layers": 2,
                "decoder_layers": 3,
                "score": "concat",
                "window": "local_m",
                "half_width": 2,
            },
            marks=pytest.mark.slow,
        ),
    ],
    ids=["default", "other"],
)
def test_a_whole_model_exports_for_sources_and_targets_of_any_length(shape):
    model = build(Settings(embedding_size=8, hidden_size=8, **shape), 11, 12).eval()

    def inputs(batch, m, n):
        source, previous = torch.randint(4, 11, (batch, m)), torch.randint(4, 12, (batch, n))
        return source, torch.randint(1, m, (batch,)), previous

    free = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}
    sizes = (free, {0: Dim.DYNAMIC}, free)
    program = torch.export.export(model, inputs(3, 7, 5), dynamic_shapes=sizes).module()
    for size in [(3, 7, 5), (5, 12, 8), (2, 3, 1)]:
        given = inputs(*size)
        assert_near(program(*given), model(*given), 1e-5)


@pytest.mark.parametrize("need_weights", [row(False, fast=False), row(True, fast=True)])
@pytest.mark.parametrize("case", [c for c in STEPS if c.window], ids=lambda case: case.name)
def test_a_window_on_a_source_without_words(case, need_weights):
    tensors = case.inputs(m=0)
    compiled = torch.compile(case.call, fullgraph=True, backend="aot_eager")
    found = derivatives(compiled, tensors, need_weights=need_weights)
    assert_all_near(found, derivatives(case.call, tensors, need_weights=need_weights))
