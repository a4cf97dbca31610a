"""Which backend computes an operator: per operator one list, in order of preference.

A backend says for each call why it cannot take it; the first without reasons does. A backend that
is asked for by name and cannot raises its reasons: nothing falls back silently from a choice.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

_HAS_NUMBA = find_spec("numba") is not None


class Backend(NamedTuple):
    """A name, and why it cannot take a call on these tensors."""

    name: str
    reasons: Callable[[Sequence[Tensor]], list[str]]


def choose(operator: str, backend: str | None, tensors: Sequence[Tensor]) -> str:
    """The name of the backend that computes `operator` on `tensors`."""
    backends = BACKENDS[operator]
    if backend is None:
        if not _HAS_NUMBA and not torch.compiler.is_compiling():
            _warn_once()
        return next(each.name for each in backends if not each.reasons(tensors))
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
def _warn_once() -> None:
    warnings.warn(
        "numba is not installed: additive and local attention will be slower", stacklevel=1
    )


def explain(operator: str, *tensors: Tensor) -> dict[str, list[str]]:
    """Why each backend of `operator` would refuse `tensors`, in order of preference.

    Operators: "additive", and "window" (what local attention does). The first with an empty list is
    the one that `backend=None` takes.
    """
    if operator not in BACKENDS:
        raise ValueError(f"operator: expected one of {', '.join(BACKENDS)}, got {operator!r}")
    return {backend.name: backend.reasons(tensors) for backend in BACKENDS[operator]}


def _numba(tensors: Sequence[Tensor], compiled: bool = True) -> list[str]:
    reasons = []
    if any(x.device.type != "cpu" for x in tensors):
        reasons.append("it computes on the CPU alone")
    elif not _HAS_NUMBA:
        reasons.append("numba cannot be imported")
    return reasons + _hidden(tensors, compiled)


def _torch(tensors: Sequence[Tensor]) -> list[str]:
    return _hidden(tensors, compiled=False)


def _hidden(tensors: Sequence[Tensor], compiled: bool) -> list[str]:
    """Where there are no numbers to work on."""
    if torch.compiler.is_exporting():
        return ["exports hold PyTorch's own operations alone"]
    if torch.compiler.is_compiling():
        return [] if compiled else ["the compiler makes its own blocks"]
    try:
        for x in tensors:
            x.data_ptr()
    except RuntimeError:
        return ["under torch.func the plain formula is what can be transformed"]
    return []


BACKENDS = {
    "additive": [
        Backend("numba", _numba),
        Backend("torch", _torch),
        Backend("reference", lambda tensors: []),
    ],
    "window": [
        Backend("numba", lambda tensors: _numba(tensors, compiled=False)),
        Backend("torch", _torch),
        Backend("reference", lambda tensors: []),
    ],
}
