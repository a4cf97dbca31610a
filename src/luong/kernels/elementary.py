"""Elementary functions for the compiled kernels: exp and tanh in a form that LLVM vectorises.

numba calls its own math.exp for each element. These are a power of two times a polynomial.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba.extending import overload

from luong.kernels.jit import fast_inline, inline


class Limits(NamedTuple):
    """The bounds within which kernels compute, for a floating type (B and p: additive/forward.py).

    If |key| and |query| are within the first two, the product of two denominators B + p is finite.
    The second is so far above the first that tanh is 1 to rounding.
    """

    key: float  # the largest |key| that the quotient takes
    query: float  # a larger |query| is replaced by this one
    exponent: float  # the least x for which exp(x) is a normal number
    shrink: float  # a factor for B and p in gradients, which hold 1 / (B + p)^2
    huge: float  # a number whose square overflows
    normal: float  # the least number that is not denormal


@inline
def _reduce32(x):
    """Return s, a power of two, and y for which exp(x) = s (1 + y), |y| < 0.42. |x| < 87."""
    t = x * np.float32(1.4426950408889634) + np.float32(12582912.0 + 127.0)
    k = t - np.float32(12582912.0 + 127.0)
    s = np.int32(np.float32(t).view(np.int32) << 23).view(np.float32)
    r = (x - k * np.float32(0.693359375)) + k * np.float32(2.12194440e-4)
    y = np.float32(1 / 5040)
    y = y * r + np.float32(1 / 720)
    y = y * r + np.float32(1 / 120)
    y = y * r + np.float32(1 / 24)
    y = y * r + np.float32(1 / 6)
    y = y * r + np.float32(1 / 2)
    return s, r * r * y + r


@inline
def _reduce64(x):
    """Return the same in double precision. |x| < 708."""
    t = x * 1.4426950408889634 + (6755399441055744.0 + 1023.0)
    k = t - (6755399441055744.0 + 1023.0)
    s = np.int64(np.float64(t).view(np.int64) << 52).view(np.float64)
    r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10
    y = 1 / 6227020800
    y = y * r + 1 / 479001600
    y = y * r + 1 / 39916800
    y = y * r + 1 / 3628800
    y = y * r + 1 / 362880
    y = y * r + 1 / 40320
    y = y * r + 1 / 5040
    y = y * r + 1 / 720
    y = y * r + 1 / 120
    y = y * r + 1 / 24
    y = y * r + 1 / 6
    y = y * r + 1 / 2
    return s, r * r * y + r


def reduce(x):
    """Return s, a power of two, and y for which exp(x) = s (1 + y)."""
    raise NotImplementedError


@overload(reduce, jit_options={"forceinline": True})
def _reduce_by_type(x):
    if x.bitwidth == 32:
        return lambda x: _reduce32(x)
    return lambda x: _reduce64(x)


def as_(constant, x):
    """Return a constant in x's type; an int literal would turn float32 into float64."""
    raise NotImplementedError


@overload(as_, jit_options={"forceinline": True})
def _as_by_type(constant, x):
    kind = np.float32 if x.bitwidth == 32 else np.float64
    return lambda constant, x: kind(constant)


def limits(x):
    """Return the limits of x's type."""
    raise NotImplementedError


@overload(limits, jit_options={"forceinline": True})
def _limits_by_type(x):
    if x.bitwidth == 32:
        found = Limits(*map(np.float32, (12, 21, -87, 2.0**-13, 2.0**100, 2.0**-126)))
    else:
        found = Limits(150.0, 175.0, -708.0, 2.0**-25, 2.0**700, 2.0**-1022)
    return lambda x: found


@inline
def clamp(x, limit):
    """Return x, limited to [-limit, limit]; NaN stays NaN."""
    x = limit if x > limit else x
    return -limit if x < -limit else x


@inline
def tanh(x):
    """Return tanh and its derivative, both to relative precision."""
    low, one = limits(x).exponent, as_(1, x)
    x2 = -abs(x + x)
    s, y = reduce(low if x2 < low else x2)
    exp = s - s if x2 < low else s * y + s
    t = (s * y + (s - one)) / (exp + one)
    slope = exp / ((exp + one) * (exp + one))
    return t if x < 0 else -t, as_(4, x) * slope


@inline
def exp(x):
    """Return exp(x) for x <= 0, and 0 where that would be denormal."""
    low = limits(x).exponent
    s, y = reduce(low if x < low else x)
    return s - s if x < low else s * y + s


@inline
def flush(x):
    """Return x, and 0 if it is denormal: processors can take a hundred cycles for a product."""
    return x - x if abs(x) < limits(x).normal else x


@fast_inline
def dot(x, y):
    """Return the sum of x * y."""
    total = as_(0, x[0])
    for e in range(len(x)):
        total += x[e] * y[e]
    return total


@inline
def add_times(out, factor, x):
    """Add factor * x to out."""
    for e in range(len(out)):
        out[e] += factor * x[e]


@inline
def scratch(rows, columns, like):
    """Return rows that start on cache lines, for columns in multiples of 16.

    Kernels take twice as long on other rows.
    """
    memory = np.empty(rows * columns + 16, like.dtype)
    skip = -memory.ctypes.data % 64 // memory.itemsize
    return memory[skip : skip + rows * columns].reshape((rows, columns))
