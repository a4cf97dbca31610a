"""The operators under a default device and a default dtype that are not those of their inputs."""

from contextlib import contextmanager

import pytest
import torch
from torch.nn import functional as F

import luong
from comparing import assert_all_near
from luong.seq2seq import Settings, build
from operator_cases import CASES, MODULES, options
from operators import DENSE

cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@contextmanager
def float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


defaults = pytest.mark.parametrize(
    "default", [lambda: torch.device("meta"), float64], ids=["meta", "float64"]
)


def gradients(found, leaves, order):
    """`found` and its gradients up to `order`, without a tensor made by this test."""
    level = found
    for i in range(order):
        level = torch.autograd.grad(
            level,
            leaves,
            [x.detach().cos() for x in level],
            create_graph=i + 1 < order,
            allow_unused=True,
            materialize_grads=True,
        )
        found = [*found, *level]
    return [x.detach() for x in found]


@defaults
@pytest.mark.parametrize(
    ("dtype", "kind", "order"), [(torch.float32, "both", 2), (torch.bfloat16, "empty_row", 1)]
)
@cases
def test_another_default_changes_nothing(case, dtype, kind, order, default):
    given = options(kind, case.sizes.n, case.sizes.m)
    tensors = [x.requires_grad_() for x in case.inputs(dtype=dtype)]

    def run():
        found = [*case.call(*tensors, need_weights=True, **given)]
        return gradients([*found, case.call(*tensors, **given).context], tensors, order)

    expected = run()
    with default():
        actual = run()
    assert all(x.device.type == "cpu" for x in actual)
    assert_all_near(actual, expected, 1e-6)


@defaults
@pytest.mark.parametrize(
    "case", [case for case in MODULES if case.sizes == DENSE], ids=lambda case: case.name
)
def test_another_default_changes_no_decoder_step(case, default):
    attention, lengths = case.attention(), torch.tensor([case.sizes.m, 3, 0])
    query, key, value = (x.requires_grad_() for x in case.inputs(dtype=torch.float32)[:3])

    def run():
        memory = attention.prepare(key, value, lengths=lengths)
        steps = [attention.attend(query[:, i : i + 1], memory).context for i in range(2)]
        kept = attention.attend(query[:1], memory.select(lengths == 3)).context
        return gradients([*steps, kept], [query, key, value, *attention.parameters()], 1)

    expected = run()
    with default():
        actual = run()
    assert_all_near(actual, expected, 1e-6)


@defaults
@cases
def test_another_default_changes_no_reference(case, default):
    given = options("both", case.sizes.n, case.sizes.m)
    tensors = case.inputs(dtype=torch.float32)
    expected = case.reference(*tensors, need_weights=True, **given)
    with default():
        assert_all_near(case.reference(*tensors, need_weights=True, **given), expected, 1e-6)


@defaults
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_another_default_changes_no_model(cell, default):
    torch.manual_seed(0)
    model = build(Settings(5, 6, dropout=0.2, cell=cell), 9, 8)
    source, lengths = torch.randint(4, 9, (3, 6)), torch.tensor([5, 2, 4])
    previous = torch.randint(4, 8, (3, 4))

    def run():
        torch.manual_seed(1)
        logits = model(source, lengths, previous)
        loss = F.cross_entropy(logits.flatten(0, 1), previous.flatten())
        return [logits.detach(), *torch.autograd.grad(loss, list(model.parameters()))]

    expected = run()
    with default():
        actual = run()
    assert_all_near(actual, expected, 1e-6)


def test_modules_are_made_in_the_defaults():
    with torch.device("meta"), float64():
        attention = luong.Attention(
            luong.Scaled(luong.Concat(3, 5, 7, bias=True)), window=luong.LocalPredictive(3, 5, 2)
        )
    for parameter in attention.parameters():
        assert (parameter.device.type, parameter.dtype) == ("meta", torch.float64)
