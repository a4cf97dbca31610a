"""The devices on which a model computes."""

from __future__ import annotations

import torch

from luong.toolkit.torchrun import Process


def find_device(name: str | torch.device | None) -> torch.device:
    """Return the device of that name, or the default one, after a first computation on it.

    Raises ValueError if there is no such device.
    """
    try:
        device = torch.device(default_device() if name is None else name)
        torch.zeros(1, device=device).item()
    except (
        RuntimeError,
        AssertionError,
        ImportError,
    ) as error:  # PyTorch may raise any of the three
        raise ValueError(
            "device: expected cpu, or a GPU that PyTorch finds here, such as cuda or cuda:1; "
            f"got {str(name)!r}"
        ) from error
    return device


def default_device() -> str:
    """Return the GPU of this process if there is one, else the CPU."""
    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{Process.here().local % torch.cuda.device_count()}"
