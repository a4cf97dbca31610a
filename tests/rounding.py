"""The rule for rounding, which every test of float32 and of the half types keeps to.

How many digits a correct result has depends on the processor: on the order in which its vector
units and threads add. So no test names a bound of its own. Each compares with what the plain
formula shows on the machine at hand, in the same dtype:

    max |ours - exact| <= 2 max |plain - exact| + 4 eps scale,

where `exact` is the formula in float64 (or better), and `scale` is the largest of the sums that
make up the numbers, with absolute values. Two results that shall be the same to rounding are both
held to it. A test that is not about a dtype computes in float64, where `comparing.assert_near`
leaves room for any order of addition.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

Numbers = Tensor | np.ndarray


def wide(x: Numbers) -> np.ndarray:
    """Return the same numbers in numpy's long double."""
    if isinstance(x, Tensor):
        x = x.detach().double().numpy()
    return x.astype(np.longdouble)


def assert_rounded(
    ours: Sequence[Tensor],
    plain: Sequence[Tensor],
    exact: Sequence[Numbers],
    scales: Sequence[Numbers] | None = None,
    where: str = "",
) -> None:
    """Hold each of `ours` to the rule; the scale of each is that of its numbers if not given."""
    for i, (mine, eager, true) in enumerate(zip(ours, plain, exact, strict=True)):
        assert mine.dtype == eager.dtype
        assert mine.shape == eager.shape == true.shape
        info, true = torch.finfo(mine.dtype), wide(true)
        scale = np.max(np.abs(wide(scales[i]) if scales else true), initial=0)
        denormal = info.smallest_normal * info.eps  # numbers this small are rounded absolutely
        error, of_plain = (np.abs(wide(x) - true).max(initial=0) for x in (mine, eager))
        allowed = 2 * of_plain + 4 * info.eps * scale + denormal
        assert error <= allowed, (
            f"{i}: off by {error:.2e}, allowed {allowed:.2e}; "
            f"the plain formula is off by {of_plain:.2e}; {where}"
        )
