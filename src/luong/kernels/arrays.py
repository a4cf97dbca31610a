"""Convert tensors to the arrays that compiled kernels take."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

_DTYPES: dict[Any, Any] = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.int64: np.dtype(np.int64),
    torch.bool: np.dtype(np.bool_),
}
_Memory = ctypes.c_byte * sys.maxsize  # memory from an address on, of which an array takes its part


def array(x: Tensor) -> Any:
    """Return the numbers of a plain CPU tensor; they are copied only if they are not contiguous.

    After `x.numpy()` PyTorch never lets the storage of x be resized, as FSDP does with that of
    every parameter; here the array only keeps the tensor alive.
    """
    x = x.contiguous()
    memory: Any = _Memory.from_address(x.data_ptr())
    memory.tensor = x
    return np.ndarray(x.shape, _DTYPES[x.dtype], memory)
