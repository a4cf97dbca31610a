"""Local attention takes memory for the window only."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from comparing import derivatives
from operators import NAMED
from window_cases import WINDOWS, backends, case_of

pytestmark = pytest.mark.usefixtures("poisoned")


class Sizes(TorchDispatchMode):
    """The largest tensor that comes out of any operation, backward too."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in torch.utils._pytree.tree_leaves(out):
            if isinstance(x, torch.Tensor) and x.untyped_storage().size() > 0:
                self.largest = max(self.largest, x.untyped_storage().nbytes() // x.element_size())
        return out


@pytest.mark.parametrize("score", ["dot", "general", "concat_bias", "location", "g_general"])
@pytest.mark.parametrize("name", ["local_m", "local_p", "local_p_renormalized"])
@backends
def test_nothing_is_of_the_size_of_all_pairs(score, name, backend):
    n = m = 1024
    sizes = NAMED._replace(n=n, m=m)
    case = case_of(score, WINDOWS[name], backend, sizes)
    tensors = case.inputs((1,), dtype=torch.float32)
    given = {"lengths": torch.tensor([m - 3])}
    with Sizes() as log:
        derivatives(case.call, tensors, **given)
    assert 0 < log.largest < 64 * n
    with Sizes() as log:
        case.call(*tensors, need_weights=True)
    assert log.largest >= n * m  # which is asked for here, and seen


PEAK = """
import sys, pathlib, torch, luong
from luong.kernels import dispatch
backend = sys.argv[1]
dispatch.BACKENDS["windowed"] = [x for x in dispatch.BACKENDS["windowed"] if x.name == backend]
def status(name):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024
def work(n):
    x = [torch.randn(1, n, 16, requires_grad=True) for _ in range(3)]
    scores = [luong.Dot(), luong.General(16, 16), luong.Concat(16, 16, 16), luong.Location(16, n)]
    before = status("VmRSS")
    for score in scores:
        for window in (luong.LocalMonotonic(10), luong.LocalPredictive(16, 8, 10)):
            attention = luong.Attention(score, window=window)
            context = attention(*x, lengths=torch.tensor([n - 1])).context
            context.sum().backward()
    return status("VmHWM") - before
work(8)
print(work(8192))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_peak_memory(backend):
    """In MiB, forward and backward; one array of n x m numbers would be 256, of n x m bools 64."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PEAK, backend],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 60
