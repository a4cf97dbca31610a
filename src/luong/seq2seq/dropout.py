"""A dropout that is fast on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from luong import _check

_STEPS = 1 << 16  # an element is dropped by 16 random bits


class Dropout(nn.Module):
    """Set elements to 0 with probability p in training; the others are multiplied by 1/(1 - p).

    It does what `nn.Dropout` does, which takes longer for random numbers on the CPU than an LSTM
    for its gates. Here p is rounded to 1/65536.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = _check.probability("dropout", p)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return F.dropout(x, self.p)
        dropped = min(round(self.p * _STEPS), _STEPS - 1)
        words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device)
        bits = words.random_(-(2**63), None)
        drawn = bits.view(torch.int16)[: x.numel()].view(x.shape)
        kept = (drawn >= dropped - _STEPS // 2).to(x.dtype)
        return x * kept.mul_(_STEPS / (_STEPS - dropped))

    def extra_repr(self) -> str:
        return f"p={self.p}"
