"""What all tests share."""

import os
import tempfile

import pytest
import torch
from hypothesis import HealthCheck, settings

from luong.kernels import dispatch

# Workers, and the commands that they start, do not fight over cores: PyTorch's threads wait for
# one another by spinning, and a training of 6 seconds took up to 175 on cores that others use.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
# a cache of their own: graphs of an earlier version know nothing of a change in our operators
_CACHE = tempfile.TemporaryDirectory(prefix="luong-inductor-", ignore_cleanup_errors=True)
os.environ["TORCHINDUCTOR_CACHE_DIR"] = _CACHE.name

# how long a machine takes to think of examples is nothing that a test is about
settings.register_profile("luong", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("luong")


@pytest.fixture(scope="session", autouse=True)
def _kernels():
    """Let kernels take the small calls that tests are made of, where a plain formula is faster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "SMALL", 0)
        yield


def _poisoned(allocate):
    """Return the function with NaN, or a number that is no index, in all that it returns."""

    def poisoned(*args, **options):
        x = allocate(*args, **options)
        if type(x) is torch.Tensor and not torch.compiler.is_compiling():
            if x.is_floating_point():
                x.fill_(float("nan"))
            elif x.dtype != torch.bool:
                x.fill_(torch.iinfo(x.dtype).min)
        return x

    return poisoned


@pytest.fixture(scope="module")
def poisoned():
    """Fill what PyTorch returns as empty: whoever asks for it has to write every element."""
    with torch.device("cpu"):  # PyTorch lists once the functions that take a default device
        torch.empty(0)
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
            patch.setattr(owner, name, _poisoned(getattr(owner, name)))
        yield
