"""The choice of the backend that computes an operator.

Each operator has a list of backends, in order of preference. A backend gives its reasons to refuse
a call; the first that has none computes it. If a backend that was asked for by name has reasons,
they become an error: nothing falls back silently from a choice.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from luong import _torch_private

# Elements of n x m x d, in the whole batch, below which PyTorch's formula is faster than a kernel:
# benchmarks/steps.py shows both.
SMALL = 1 << 14


class Backend(NamedTuple):
    """The name of a backend, its reasons to refuse a call, and whether it is fast in small ones."""

    name: str
    reasons: Callable[[Sequence[Tensor]], list[str]]
    for_small: bool = True


def choose(
    operator: str, backend: str | None, tensors: Sequence[Tensor], elements: int | None = None
) -> str:
    """Return the name of the backend that computes `operator` on `tensors`.

    A backend that is asked for by name takes small calls too. `elements` is n x m x d in the whole
    batch, None where nobody knows it.
    """
    backends = BACKENDS[operator]
    if backend is None:
        small = is_small(elements)
        chosen = next(
            each.name
            for each in backends
            if (each.for_small or not small) and not each.reasons(tensors)
        )
        compiling = torch.compiler.is_compiling()
        if chosen != "numba" and not small and not compiling and (missing := _no_numba()):
            _warn_once(missing)
        return chosen
    for each in backends:
        if each.name == backend:
            if reasons := each.reasons(tensors):
                raise ValueError(
                    f"backend: {backend!r} cannot take this call: {'; '.join(reasons)}"
                )
            return backend
    names = ", ".join(repr(each.name) for each in backends)
    raise ValueError(f"backend: expected None or one of {names}, got {backend!r}")


@cache
def _warn_once(missing: str) -> None:
    warnings.warn(f"{missing}: additive and local attention will be slower", stacklevel=1)


def explain(operator: str, *tensors: Tensor) -> dict[str, list[str]]:
    """Return why each backend of an operator would refuse a call on these tensors.

    Args:
        operator: "additive", or "windowed" for attention within a local window.
        tensors: the tensors of the call: query, key, value, v.

    Returns:
        A list of reasons for each backend, in order of preference. The first with an empty list is
        the one that `backend=None` takes.

    Raises:
        ValueError: there is no such operator.

    Example:
        >>> reasons = luong.explain("additive", torch.randn(4, 8), torch.randn(6, 8))
        >>> list(reasons), reasons["reference"]
        (['numba', 'torch', 'reference'], [])
    """
    if operator not in BACKENDS:
        raise ValueError(f"operator: expected one of {', '.join(BACKENDS)}, got {operator!r}")
    small = len(tensors) > 1 and is_small(elements(*tensors[:2]))
    slower = [f"below {SMALL:,} elements of n x m x d, the plain formula is faster"]
    return {
        each.name: each.reasons(tensors) + ([] if each.for_small or not small else slower)
        for each in BACKENDS[operator]
    }


def elements(query: Tensor, key: Tensor) -> int:
    """Return n x m x d in the whole batch, of query (*batch, n, d) and key (*batch, m, d)."""
    if query.ndim < 2 or key.ndim < 2:
        return 0
    return max(query.numel() * key.shape[-2], key.numel() * query.shape[-2])


def is_small(elements: int | None) -> bool:
    """Return whether the plain formula is faster; compiled code does not look at sizes."""
    return elements is not None and not torch.compiler.is_compiling() and elements < SMALL


def forward_mode() -> bool:
    """Return whether forward mode is at work, whose derivatives only PyTorch's operations have.

    Compilers see to it themselves.
    """
    return not torch.compiler.is_compiling() and _torch_private.forward_mode()


def transformed(*grads: Tensor) -> bool:
    """Return whether torch.func or forward mode is at work, or one of `grads` holds many in one."""
    return (
        _torch_private.functorch()
        or _torch_private.forward_mode()
        or any(map(_torch_private.batched, grads))
    )


def plain_now() -> bool:
    """Return whether a kernel may run on plain tensors: nothing compiles, transforms or records."""
    return not (torch.compiler.is_compiling() or transformed() or _torch_private.recorded())


def plain_backward(grad: Tensor) -> bool:
    """Return whether a backward pass has to be that of the plain formula, in PyTorch's operations.

    It has to be if the pass itself is differentiated or transformed.
    """
    return torch.is_grad_enabled() or transformed(grad)


def _numba(tensors: Sequence[Tensor], compiled: bool = True) -> list[str]:
    reasons = []
    if not all([x.is_cpu for x in tensors]):  # noqa: C419 (a generator takes twice as long)
        reasons.append("it computes only on the CPU")
    elif missing := _no_numba():
        reasons.append(missing)
    return reasons + _hidden(tensors, compiled)


@_torch_private.constant
def _no_numba() -> str:
    """Return the reason why there is no numba to compile with; empty if there is one."""
    return _missing()


@cache
def _missing() -> str:
    try:
        import numba
    except ModuleNotFoundError:
        return "numba is not installed"
    except Exception as error:  # as where it does not fit numpy
        return f"numba cannot be imported ({error})"
    off: bool = numba.config.DISABLE_JIT  # type: ignore[attr-defined]
    return "NUMBA_DISABLE_JIT switches its compiler off" if off else ""


def _torch(tensors: Sequence[Tensor]) -> list[str]:
    return _hidden(tensors, compiled=False)


def _hidden(tensors: Sequence[Tensor], compiled: bool) -> list[str]:
    """Return the reasons why a call has to consist of PyTorch's own operations."""
    if torch.compiler.is_exporting():
        return ["exports hold only PyTorch's own operations"]
    if torch.compiler.is_compiling():
        return [] if compiled else ["the compiler makes its own blocks"]
    if transformed():
        return [
            "under torch.func and in forward mode, the plain formula is what can be transformed"
        ]
    if _torch_private.recorded():
        return ["while operations are recorded, they have to be PyTorch's own"]
    for x in tensors:
        if type(x) not in _PLAIN:
            return [f"it takes plain tensors, and a {type(x).__name__} has its own rules"]
    return []


_PLAIN = (Tensor, nn.Parameter)


BACKENDS = {
    "additive": [
        Backend("numba", _numba, for_small=False),
        Backend("torch", _torch, for_small=False),
        Backend("reference", lambda tensors: []),
    ],
    "windowed": [
        Backend("numba", lambda tensors: _numba(tensors, compiled=False)),
        Backend("torch", _torch),
        Backend("reference", lambda tensors: []),
    ],
}
