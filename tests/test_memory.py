"""A memory whose parts are replaced, detached, moved, changed in place, stored or mapped."""

import copy
import io
import math
import pickle

import pytest
import torch
from torch.utils import _pytree as pytree

import luong
from comparing import assert_all_near, assert_near
from luong.kernels.additive import compiled
from operator_cases import MODULES
from operators import DENSE

CASES = [case for case in MODULES if case.sizes == DENSE and "predictive" not in case.name]
modules = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
steps = pytest.mark.parametrize("n", [1, DENSE.n])
LENGTHS = torch.tensor([DENSE.m, 4, 0])


class Source:
    """An attention in float64 with a query of n rows, a source, and another of the same shapes."""

    def __init__(self, case, n=1):
        torch.manual_seed(0)
        self.attention = case.attention().double()
        self.query, self.key, self.value = (x.requires_grad_() for x in case.inputs(n=n)[:3])
        self.others = [x.requires_grad_() for x in case.inputs(seed=1)[1:3]]

    def prepare(self, key=None, value=None, **given):
        key, value = self.key if key is None else key, self.value if value is None else value
        return self.attention.prepare(key, value, **(given or {"lengths": LENGTHS}))

    def results(self, memory, leaves=()):
        """Context and gradients: of query, old and new source, parameters and `leaves`."""
        context = self.attention.attend(self.query, memory).context
        leaves = [self.query, self.key, self.value, *self.others, *leaves]
        leaves += self.attention.parameters()
        found = torch.autograd.grad(
            context.sin().sum(),
            leaves,
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        return [context, *found]


@steps
@pytest.mark.parametrize("part", ["key", "value", "both"])
@modules
def test_a_replaced_part_is_the_one_that_counts(case, part, n):
    source = Source(case, n)
    key, value = source.others
    key, value = {"key": (key, None), "value": (None, value), "both": (key, value)}[part]
    expected, old = source.prepare(key, value), source.prepare()
    new = {"key": expected.key} if part != "value" else {}
    new |= {"value": expected.value} if part != "key" else {}
    assert_all_near(source.results(old._replace(**new)), source.results(expected), 1e-12)


@steps
@pytest.mark.parametrize("kind", ["fewer", "nothing", "more", "none"])
@modules
def test_a_replaced_mask_is_the_one_that_counts(case, kind, n):
    source, m = Source(case, n), case.sizes.m
    torch.manual_seed(0)
    mask = torch.rand(3, 1, m) < 0.5
    old = source.prepare(mask=mask)
    if kind == "more":
        old, mask = source.prepare(mask=mask), torch.ones(3, 1, m, dtype=torch.bool)
    elif kind == "fewer":
        mask = mask & (torch.arange(m) < 4)
    elif kind == "nothing":
        mask = torch.zeros(3, 1, m, dtype=torch.bool)
    found = source.results(old._replace(mask=None if kind == "none" else mask))
    keys = old.key.detach(), old.value.detach()  # zeros, where the old mask hid them
    by_hand = luong.Memory(old.key, old.value, None if kind == "none" else mask, old.lengths)
    assert_all_near(found, source.results(by_hand), 1e-12)
    assert all(x.isfinite().all() for x in (*found, *keys))
    if kind in ("fewer", "nothing"):
        assert_all_near(found, source.results(source.prepare(mask=mask)), 1e-12)


@steps
@modules
def test_what_a_new_part_hides_may_be_anything(case, n):
    source = Source(case, n)
    old, new = source.prepare(), source.prepare(source.others[0], source.others[1])
    hidden = ~new.mask.mT
    dirty = {"key": new.key, "value": new.value}
    dirty = {name: x.masked_fill(hidden, math.nan) for name, x in dirty.items()}
    assert_all_near(source.results(old._replace(**dirty)), source.results(new), 1e-12)


# Truncated backpropagation


@steps
@pytest.mark.parametrize("way", ["detach", "_replace", "tree_map"])
@modules
def test_a_detached_memory_leaves_its_source_without_gradients(case, way, n):
    source = Source(case, n)
    memory = source.prepare()
    context, of_query, *_ = source.results(memory)
    if way == "detach":
        memory = memory.detach()
    elif way == "_replace":
        memory = memory._replace(key=memory.key.detach(), value=memory.value.detach())
    else:
        memory = pytree.tree_map_only(torch.Tensor, lambda x: x.detach(), memory)
    found = source.results(memory)
    assert_all_near(found[:2], [context, of_query], 1e-12)
    assert not any(x.any() for x in found[2:4])


def concat(dtype=torch.float64):
    torch.manual_seed(0)
    attention = luong.Attention(luong.Concat(3, 5, 7, backend="numba")).to(dtype)
    query, key = torch.randn(2, 1, 3, dtype=dtype), torch.randn(2, 6, 5, dtype=dtype)
    return attention, query, key


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("way", ["detach", "to", "select"])
def test_detach_to_and_select_prepare_nothing_again(monkeypatch, way, dtype):
    attention, query, key = concat(dtype)
    memory = attention.prepare(key, lengths=torch.tensor([6, 2]))
    expected = attention.attend(query, memory).context
    monkeypatch.setattr(compiled, "prepare", None)
    if way == "detach":
        memory = memory.detach()
    elif way == "to":
        memory = memory.to("cpu", dtype)
    else:
        memory = memory.select(torch.tensor([0, 1]))
    assert_near(attention.attend(query, memory).context, expected)


@modules
def test_to_another_dtype_and_device(case):
    source = Source(case)
    memory = source.prepare()
    expected = source.results(memory)[0].float()
    assert memory.to() is memory
    assert memory.to("cpu", torch.float64) is memory
    source.attention = copy.deepcopy(source.attention).float()
    source.query = source.query.detach().float().requires_grad_()
    found = source.results(memory.to(dtype=torch.float32))
    assert_near(found[0], expected, 1e-5)
    assert found[3].any()  # gradients flow through it
    moved = memory.to("meta")
    tensors = [x for x in moved if isinstance(x, torch.Tensor)]
    assert {x.device.type for x in tensors} == {"meta"}


# Changes in place


PARTS = ("key", "value", "mask", "lengths")
IN_PLACE = [case for case in CASES if case.window is None and case.looks_at_keys]
in_place = pytest.mark.parametrize("case", IN_PLACE, ids=lambda case: case.name)


def change(tensor):
    with torch.no_grad():
        tensor.logical_not_() if tensor.dtype == torch.bool else tensor.mul_(2)


@pytest.mark.parametrize("hides", [False, True])
@pytest.mark.parametrize("part", PARTS)
@in_place
def test_a_change_in_place_is_an_error_where_gradients_are_taken(case, part, hides):
    source = Source(case)
    mask = torch.ones(3, 1, case.sizes.m, dtype=torch.bool)
    mask[1, 0, 2] = not hides
    lengths = LENGTHS // 2
    memory = source.prepare(mask=mask, lengths=lengths)
    source.results(memory)
    change({"key": source.key, "value": source.value, "mask": mask, "lengths": lengths}[part])
    with pytest.raises(RuntimeError, match=rf"^{part}: changed in place after prepare, while grad"):
        source.results(memory)
    with pytest.raises(RuntimeError, match=f"^{part}: changed in place"):
        source.results(memory.select(torch.tensor([0, 1, 2])))


@pytest.mark.parametrize("part", ["key", "value", "mask"])
@in_place
def test_without_gradients_a_memory_is_read_as_it_is(case, part):
    source = Source(case)
    with torch.no_grad():
        memory = source.prepare(mask=torch.rand(3, 1, case.sizes.m) < 0.5)
        change(getattr(memory, part))
        expected = source.attention.attend(source.query, luong.Memory(*memory[:4])).context
        assert_near(source.attention.attend(source.query, memory).context, expected)
        assert_near(source.attention.attend(source.query, memory.detach()).context, expected)


def test_without_gradients_lengths_stay_as_they_were():
    attention, query, key = concat()
    lengths = torch.tensor([6, 2])
    with torch.no_grad():
        memory = attention.prepare(key, lengths=lengths)
        expected = attention.attend(query, memory).context
        lengths.zero_()
        assert_near(attention.attend(query, memory).context, expected)
        assert memory.lengths.flatten().tolist() == [6, 2]


def test_inference_tensors_do_not_tell():
    attention, query, key = concat()
    with torch.inference_mode():
        key = key.clone()
        memory = attention.prepare(key)
        expected = attention.attend(query, memory).context
        assert_near(attention.attend(query, memory.select(torch.tensor([0, 1]))).context, expected)
    with torch.no_grad():
        assert_near(attention.attend(query, memory.detach()).context, expected)


def test_simplified_keys_changed_in_place_are_not_mixed_under_create_graph():
    attention = luong.Attention(luong.Concat(4, 7, 7, simplified=True)).double()
    query, key = torch.randn(2, 1, 4).double().requires_grad_(), torch.randn(2, 6, 7).double()
    memory = attention.prepare(key)
    context = attention.attend(query, memory).context
    key.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):  # PyTorch's own
        torch.autograd.grad(context.sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match=r"^key: changed in place"):
        attention.attend(query, memory)


# Stored, copied, mapped


def saved(memory):
    file = io.BytesIO()
    torch.save(memory, file)
    file.seek(0)
    with torch.serialization.safe_globals([luong.Memory]):
        return torch.load(file, weights_only=True)


@pytest.mark.parametrize(
    "again",
    [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), saved],
    ids=["deepcopy", "pickle", "torch.load"],
)
@modules
def test_copies(case, again):
    source = Source(case)
    with torch.no_grad():
        memory = source.prepare()
        expected = source.attention.attend(source.query, memory).context
        copied = again(memory)
        assert type(copied) is luong.Memory
        assert copied.key is not memory.key
        assert_near(source.attention.attend(source.query, copied).context, expected)
        assert_near(source.attention.attend(source.query, copied.detach()).context, expected)


@pytest.mark.parametrize("name", ["dot", "general", "concat_bias", "location"])
def test_vmap_over_a_memory(name):
    case = next(case for case in CASES if case.name == f"module-{name}-n5m7")
    source = Source(case)
    with torch.no_grad():
        memory = source.prepare(lengths=LENGTHS)
        expected = source.attention.attend(source.query, memory).context

        def attend(query, memory):
            return source.attention.attend(query, memory).context

        assert_near(torch.vmap(attend)(source.query, memory), expected, 1e-12)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("name", ["dot", "general", "concat_bias"])
def test_compiled_steps_see_replaced_parts(name):
    case = next(case for case in CASES if case.name == f"module-{name}-n5m7")
    source = Source(case)

    def attend(query, memory, value, mask):
        return source.attention.attend(query, memory._replace(value=value, mask=mask)).context

    memory = source.prepare(lengths=LENGTHS)
    mask = memory.mask & (torch.arange(case.sizes.m) > 1)
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    expected = attend(source.query, memory, source.others[1], mask)
    assert_near(compiled(source.query, memory, source.others[1], mask), expected, 1e-12)
