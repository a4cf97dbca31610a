"""Parameters of modules: their first values, and a check that inputs fit them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from luong import _check


def uniform(*shape: int) -> nn.Parameter:
    """Return a parameter that starts uniform in ±1/√(last size), as PyTorch's Linear does."""
    return nn.Parameter(torch.empty(shape).uniform_(-1, 1) / math.sqrt(shape[-1]))


def like(name: str, x: Tensor, weight: Tensor) -> Tensor:
    """Return `weight`, checked to be on the device and of the dtype of its input `x`."""
    if x.dtype != weight.dtype and not _check.autocast(x):
        raise TypeError(
            f"{name}: expected {weight.dtype} like the module's weights, got {x.dtype} "
            "(dtypes may differ under torch.autocast only)"
        )
    if x.device != weight.device:
        raise ValueError(f"{name}: expected device {weight.device} of the module, got {x.device}")
    return weight
