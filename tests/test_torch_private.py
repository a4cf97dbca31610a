"""The private names of PyTorch that the package relies on are there, and answer as described."""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from luong import _torch_private as torch_private

pytestmark = [  # about what PyTorch does inside: forward mode still scripts some decompositions
    pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning"),
]


def test_private_names_answer_as_they_are_described():
    x = torch.ones(3, requires_grad=True)
    seen = []

    def note(*names):
        def function(y):
            seen.append([getattr(torch_private, name)() for name in names])
            return 2 * y

        return function

    note("functorch", "forward_mode", "recorded")(x)
    vmap(note("functorch", "forward_mode"))(x)
    torch.func.grad(lambda y: note("functorch", "forward_mode")(y).sum())(x)
    jvp(note("functorch", "forward_mode"), (x,), (x,))
    make_fx(note("recorded"))(x)
    with FakeTensorMode() as mode:
        note("recorded")(mode.from_tensor(x))
    with forward_ad.dual_level():
        note("functorch", "forward_mode")(x)
    note("functorch", "forward_mode", "recorded")(x)
    nothing = [False, False, False]
    expected = [nothing, [True, False], [True, False], [True, True], [True], [True], [False, True]]
    assert seen == [*expected, nothing]


def test_private_names_of_a_backward_pass():
    ended, passes, batched = [], [], []

    class Node(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            passes.append(torch_private.backward_pass())
            batched.append(torch_private.batched(grad))
            torch_private.after_backward(lambda: ended.append(True))
            assert not ended
            assert torch_private.will_run(first) == wanted
            return 2 * grad

    x = torch.ones(3, requires_grad=True)
    first = (tripled := 3 * x).grad_fn
    same = tripled.clone()
    y = Node.apply(same)
    for wanted, to in ((True, x), (False, same)):
        (grad,) = torch.autograd.grad(y.sum(), to, retain_graph=True)
        assert ended == [True]
        assert grad.tolist() == [6.0 if wanted else 2.0] * 3
        ended.clear()
    assert passes[0] != passes[1]
    wanted = True
    torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True)
    assert batched == [False, False, True]


def test_private_scan():
    def step(state, x):
        return (state[0] + x,), 2 * state[0]

    (last,), found = torch_private.scan(step, (torch.zeros(()),), torch.arange(4.0))
    assert last.item() == 6
    assert found.tolist() == [0, 0, 2, 6]


def test_private_mark_of_a_constant():
    def own():
        return ""

    def public():
        return ""

    assert vars(torch_private.constant(own)) == vars(torch.compiler.assume_constant_result(public))
