"""This file holds every private name of PyTorch that the package relies on, and no other does.

tests/test_torch_private.py fails where PyTorch drops or changes one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable, forward_ad

_FAKE = torch._C._TorchDispatchModeKey.FAKE
_PROXY = torch._C._TorchDispatchModeKey.PROXY


def forward_mode() -> bool:
    """Return whether a level of forward-mode differentiation is open: dual_level, jvp, jacfwd.

    `unpack_dual` is public, but tells about one tensor; a kernel that runs on a tensor without a
    tangent, between two that have one, would break the chain as well.
    """
    return forward_ad._current_level >= 0


def functorch() -> bool:
    """Return whether a transformation of torch.func is under way: vmap, grad, jvp, functionalize.

    Tensors do not tell: inside vmap, one that is not mapped looks like all the rest.
    """
    return torch._C._functorch.peek_interpreter_stack() is not None


def recorded() -> bool:
    """Return whether operations are recorded or simulated: jit.trace, make_fx, FakeTensorMode.

    The work of a kernel on memory would be missing in the record.
    """
    return (
        torch._C._get_tracing_state() is not None
        or torch._C._get_dispatch_mode(_PROXY) is not None
        or torch._C._get_dispatch_mode(_FAKE) is not None
    )


def batched(x: Tensor) -> bool:
    """Return whether x is many gradients in one: is_grads_batched=True, jacobian(vectorize=True).

    These still go by the vmap that came before torch.func, which `functorch` does not see.
    """
    return torch._C._functorch.is_legacy_batchedtensor(x)


def backward_pass() -> int:
    """Return the number of the backward pass under way: gradients of two must not mix."""
    return torch._C._current_graph_task_id()


def will_run(node: Any) -> bool:
    """Return whether the backward pass under way comes to this node of its graph."""
    return torch._C._will_engine_execute_node(node)


def after_backward(callback: Callable[[], None]) -> None:
    """Call back when the backward pass that is under way ends, however it does."""
    Variable._execution_engine.queue_callback(callback)


def constant(function: Callable[[], str]) -> Callable[[], str]:
    """Let compilers call `function` once and take its result for a constant.

    torch.compiler.assume_constant_result sets this mark too, and imports the whole compiler first,
    which takes longer than all else that a command imports.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def scan(
    step: Callable[[Any, Any], tuple[Any, Tensor]], state: Any, inputs: Any
) -> tuple[Any, Tensor]:
    """Return the last state and all results of state, result = step(state, inputs[t]).

    A loop that stays a loop in an export, so that its length may vary. It is a prototype.
    """
    from torch._higher_order_ops import scan

    found: tuple[Any, Tensor] = scan(step, state, inputs)
    return found
