"""Compile kernels, and compile them again after any edit of their sources.

numba keeps machine code in `__pycache__`, in files named after the kernel, and uses it until the
file that defines the kernel changes. But kernels inline functions of other files. So the name of
each kernel has a digest of all sources of `luong.kernels`: after any edit there, numba finds no
machine code by that name and compiles.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from numba import njit

if TYPE_CHECKING:
    from importlib.abc import Traversable  # this module at run time up to Python 3.13 only


def digest(package: Traversable) -> str:
    """Return hexadecimal digits that change with any Python source of a package."""
    found = hashlib.sha256()
    for name, source in _sources(package):
        found.update(f"{name} {len(source)} ".encode() + source)
    return found.hexdigest()[:12]


def _sources(folder: Traversable) -> Iterator[tuple[str, bytes]]:
    for each in sorted(folder.iterdir(), key=lambda each: each.name):
        if each.is_dir():
            yield from ((f"{each.name}/{name}", source) for name, source in _sources(each))
        elif each.name.endswith(".py"):
            yield each.name, each.read_bytes()


DIGEST = digest(files("luong.kernels"))


def _kernel(fastmath: set[str]) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a kernel, and keeps the machine code where it may write."""

    def decorate(function: Callable[..., Any]) -> Any:
        options: Any = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
        function.__qualname__ = f"{function.__qualname__}-{DIGEST}"
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:  # no folder can be written to: each process compiles
            return njit(**options)(function)

    return decorate


# NaN and inf keep their meaning, hence neither "nnan" nor "ninf". Elementary functions must not be
# reassociated (their error compensation would be simplified away), nor products whose order keeps
# them in range; sums over features must be, or they are not vectorised.
_SUMS = {"reassoc", "contract", "nsz"}
exact = _kernel({"contract"})
inline = njit(forceinline=True, error_model="numpy", fastmath={"contract"})
fast_inline = njit(forceinline=True, error_model="numpy", fastmath=_SUMS)
