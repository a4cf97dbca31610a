"""Every operator under what PyTorch does to functions, and on tensors that hold no numbers.

The numbers have to be those of the same call without it, or of the reference.
"""

import os
import subprocess
import sys

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.functional import hessian, jacobian
from torch.func import functional_call, jacfwd, jacrev, jvp, linearize, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map_only

import luong
from comparing import assert_all_near, assert_near, probe
from operator_cases import CASES, MODULES, options

cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
pytestmark = [  # about what PyTorch does inside: forward mode still scripts some decompositions
    pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning"),
]
modules = pytest.mark.parametrize("case", MODULES, ids=lambda case: case.name)


def masked(case):
    """Inputs, and a mask with lengths."""
    return case.inputs(), options("both", case.sizes.n, case.sizes.m)


def steps(case, tensors, given, memory=None):
    """The context by `prepare` and a call of `attend` for each query."""
    query, key, value, *parameters = tensors
    named = {f"attention.{k}": x for k, x in zip(case.parameters, parameters, strict=True)}
    return functional_call(_Steps(case.module), named, (query, key, value, given, memory))


class _Steps(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, query, key, value, given, memory):
        attention = self.attention
        memory = memory or attention.prepare(key, value, lengths=given["lengths"])
        found = [
            attention.attend(query[..., i : i + 1, :], memory, position=i).context
            for i in range(query.shape[-2])
        ]
        return torch.cat(found, -2)


# Tensors without numbers, or with rules of their own


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@cases
def test_meta_tensors_have_the_shapes_and_dtypes_of_results(case, dtype):
    tensors, given = masked(case)
    tensors = [x.to("meta", dtype).requires_grad_() for x in tensors]
    given = {name: x.to("meta") for name, x in given.items()}
    expected = case.call(*case.inputs(), need_weights=True)
    found = case.call(*tensors, need_weights=True, **given)
    found.context.sum().backward()
    alone = case.call(*tensors, **given).context
    for one, other in [*zip(found, expected, strict=True), (alone, expected.context)]:
        assert (one.shape, one.dtype, one.device.type) == (other.shape, dtype, "meta")
    used = tensors if case.looks_at_keys else [tensors[0], *tensors[2:]]
    assert all(x.grad.shape == x.shape for x in used)


@cases
def test_fake_tensors_have_the_shapes_of_results(case):
    tensors, given = masked(case)
    with FakeTensorMode() as mode:
        tensors = [mode.from_tensor(x).requires_grad_() for x in tensors]
        given = {name: mode.from_tensor(x) for name, x in given.items()}
        context = case.call(*tensors, **given).context
        context.sum().backward()
    assert context.shape == case.call(*case.inputs()).context.shape
    assert tensors[0].grad.shape == tensors[0].shape


@modules
def test_a_module_made_on_meta_or_of_fakes(case):
    """As one that is too large to be filled before it is spread over machines."""
    for where in (torch.device("meta"), FakeTensorMode()):
        with where:
            context = case.attention()(*(torch.empty(x.shape) for x in case.inputs()[:3])).context
        assert context.shape == case.call(*case.inputs()).context.shape


class Wrapped(torch.Tensor):
    """A tensor whose numbers lie in another one, as those of torchao or DTensor."""

    @staticmethod
    def __new__(cls, inner):
        options = {"strides": inner.stride(), "dtype": inner.dtype, "device": inner.device}
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, **options)

    def __init__(self, inner):
        self.plain = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):  # type: ignore[override]
        args, kwargs = tree_map_only(Wrapped, lambda x: x.plain, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, Wrapped, function(*args, **kwargs))


@cases
def test_wrapper_subclasses_keep_values_and_gradients(case):
    tensors, given = masked(case)
    leaves = [x.requires_grad_() for x in tensors]
    expected = case.call(*leaves, **given).context
    how = {"allow_unused": True, "materialize_grads": True}
    gradients = torch.autograd.grad(expected, leaves, probe(expected), **how)
    wrapped = [Wrapped(x.detach()).requires_grad_() for x in tensors]
    context = case.call(*wrapped, **given).context
    found = torch.autograd.grad(context, wrapped, Wrapped(probe(expected)), **how)
    assert isinstance(context, Wrapped)
    assert_near(context.plain, expected)
    plain = [x.plain for x in found if isinstance(x, Wrapped)]
    assert_all_near(plain, gradients, 1e-12)


def test_explain_names_the_subclass():
    x = Wrapped(torch.ones(2, 3, 4))
    reasons = ["it takes plain tensors, and a Wrapped has its own rules"]
    for operator in ("additive", "windowed"):
        expected = {"numba": reasons, "torch": reasons, "reference": []}
        assert luong.explain(operator, x, nn.Parameter(torch.ones(4))) == expected


# Forward mode


def tangent_of_reference(case, tensors, tangents, given):
    def context(*x):
        return case.reference(*x, **given)[0]

    return jvp(context, tuple(tensors), tuple(tangents))


@cases
def test_forward_mode_equals_the_reference(case):
    tensors, given = masked(case)
    tangents = case.inputs(seed=3)
    expected = tangent_of_reference(case, tensors, tangents, given)

    def context(*x):
        return case.call(*x, **given).context

    assert_all_near(jvp(context, tuple(tensors), tuple(tangents)), expected, 1e-12)
    value, push = linearize(context, *tensors)
    assert_all_near([value, push(*tangents)], expected, 1e-12)
    with forward_ad.dual_level():
        duals = map(forward_ad.make_dual, tensors, tangents)
        assert_all_near(forward_ad.unpack_dual(context(*duals)), expected, 1e-12)


@modules
def test_forward_mode_through_steps(case):
    tensors, given = case.inputs(), options("lengths", *case.sizes[:2])
    tangents = case.inputs(seed=3)
    expected = tangent_of_reference(case, tensors, tangents, given)
    found = jvp(lambda *x: steps(case, x, given), tuple(tensors), tuple(tangents))
    assert_all_near(found, expected, 1e-12)


def energy(call, case):
    """A number of two numbers, in whose directions all tensors move."""
    tensors, given = masked(case)
    directions = zip(case.inputs(seed=3), case.inputs(seed=4), strict=True)
    ways = [torch.stack(pair, -1) for pair in directions]

    def found(c):
        moved = [x + (c * way).sum(-1) for x, way in zip(tensors, ways, strict=True)]
        return call(*moved, **given)[0].square().sum()

    return found, 0.01 * torch.ones(2, dtype=torch.float64)


@cases
def test_second_derivatives_of_every_kind(case):
    function, at = energy(case.call, case)
    expected = hessian(*energy(case.reference, case))
    kinds = {
        "forward over backward": torch.func.hessian(function)(at),
        "forward over forward": jacfwd(jacfwd(function))(at),
        "backward over forward": jacrev(jacfwd(function))(at),
        "batched backward over backward": hessian(function, at, vectorize=True),
        "batched forward over backward": hessian(
            function, at, vectorize=True, outer_jacobian_strategy="forward-mode"
        ),
    }
    for kind, found in kinds.items():
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10, msg=kind)


@cases
def test_a_tangent_of_the_incoming_gradient(case):
    """The backward pass of a call made before is linear in it."""
    tensors, given = masked(case)
    leaves = [x.requires_grad_() for x in tensors]
    context = case.call(*leaves, **given).context
    how = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    expected = torch.autograd.grad(context, leaves, probe(context), **how)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.zeros_like(context), probe(context))
        found = map(forward_ad.unpack_dual, torch.autograd.grad(context, leaves, dual, **how))
        tangents = [torch.zeros_like(x) if t is None else t for x, t in found]
    assert_all_near(tangents, expected, 1e-12)


# vmap over one of several tensors, and many gradients in one


@pytest.mark.parametrize("which", [0, 1, 2], ids=["query", "key", "value"])
@cases
def test_vmap_over_one_tensor(case, which):
    tensors, given = masked(case)
    other = case.inputs(seed=3)[which]
    expected = [
        case.call(*tensors[:which], x, *tensors[which + 1 :], need_weights=True, **given)
        for x in (tensors[which], other)
    ]
    contexts, weights = (torch.stack(x) for x in zip(*expected, strict=True))

    def both(x):
        return tuple(
            case.call(*tensors[:which], x, *tensors[which + 1 :], need_weights=True, **given)
        )

    def context(x):
        return case.call(*tensors[:which], x, *tensors[which + 1 :], **given).context

    mapped = torch.stack([tensors[which], other])
    assert_all_near(vmap(both)(mapped), [contexts, weights], 1e-12)
    assert_near(vmap(context)(mapped), contexts, 1e-12)


@pytest.mark.parametrize("case", [c for c in CASES if c.way == "function"], ids=lambda c: c.name)
def test_vmap_over_value_with_dropout(case):
    query, key, value, *parameters = case.inputs()

    def context(value):
        return case.call(query, key, value, *parameters, dropout=0.5).context

    torch.manual_seed(2)
    expected = context(value)
    torch.manual_seed(2)
    found = vmap(context, randomness="same")(torch.stack([value, 2 * value]))
    assert_all_near(found, [expected, 2 * expected], 1e-12)


@pytest.mark.parametrize("prepared", ["inside", "outside"])
@modules
def test_vmap_of_steps_over_a_source_that_is_not_mapped(case, prepared):
    tensors, given = case.inputs(), options("lengths", *case.sizes[:2])
    expected = steps(case, tensors, given)
    query, *rest = tensors
    memory = None
    if prepared == "outside":
        attention = case.attention().double()
        attention.load_state_dict(dict(zip(case.parameters, tensors[3:], strict=True)))
        with torch.no_grad():
            memory = attention.prepare(*tensors[1:3], **given)
    found = vmap(lambda q: steps(case, [q, *rest], given, memory))(torch.stack([query, query]))
    assert_all_near(found, [expected, expected], 1e-12)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize(
    ("case", "call"),
    [(case, case.call) for case in CASES] + [(case, steps) for case in MODULES],
    ids=lambda x: getattr(x, "name", None) or x.__name__,
)
def test_many_gradients_in_one(case, call, create_graph):
    """As `jacobian(vectorize=True)` and `is_grads_batched=True` want them."""
    tensors, given = masked(case)
    leaves = [x.requires_grad_() for x in tensors]
    context = steps(case, leaves, given) if call is steps else call(*leaves, **given).context
    grads = torch.stack([probe(context), probe(context).flip(0)])
    how = {"retain_graph": True, "allow_unused": True}
    found = torch.autograd.grad(
        context, leaves, grads, is_grads_batched=True, create_graph=create_graph, **how
    )
    for i, grad in enumerate(grads):
        for some, one in zip(found, torch.autograd.grad(context, leaves, grad, **how), strict=True):
            assert (some is None) == (one is None)
            if one is not None:
                assert_near(some[i].detach(), one, 1e-11)


@cases
def test_vectorized_jacobians(case):
    (query, *rest), given = masked(case)

    def context(call):
        return lambda q: call(q, *rest, **given)[0].sum((0, 1))

    expected = jacobian(context(case.reference), query)
    for strategy in ("reverse-mode", "forward-mode"):
        found = jacobian(context(case.call), query, vectorize=True, strategy=strategy)
        assert_near(found, expected, 1e-11)


# Recorders


@cases
def test_make_fx_records_all_that_is_computed(case):
    (query, *rest), given = masked(case)
    full = torch.full_like(given["lengths"], case.sizes.m)

    def context(query, mask, lengths):
        return case.call(query, *rest, mask=mask, lengths=lengths).context

    graph = make_fx(context)(query, torch.ones_like(given["mask"]), full)
    for mask, lengths in [(given["mask"], full), (given["mask"], given["lengths"])]:
        assert_near(graph(query, mask, lengths), context(query, mask, lengths), 1e-12)
    assert "luong" not in " ".join(str(node.target) for node in graph.graph.nodes)


NO_COMPILER = """
import warnings, torch, luong
x = torch.randn(2, 5, 4, requires_grad=True)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("default")
    for window in (None, luong.LocalMonotonic(1)):
        for score in (luong.Concat(4, 4, 4), luong.Dot()):
            luong.Attention(score, window=window)(x, x).context.sum().backward()
print(*(x.message for x in seen))
for operator in ("additive", "windowed"):
    print(luong.explain(operator, x))
"""


def test_without_numba_s_compiler_the_torch_backend_takes_over():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", NO_COMPILER],
        env=os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    off = "NUMBA_DISABLE_JIT switches its compiler off"
    reasons = {"numba": [off], "torch": [], "reference": []}
    warned = f"{off}: additive and local attention will be slower"
    assert done.stdout.splitlines() == [warned, str(reasons), str(reasons)]
