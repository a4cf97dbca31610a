"""The processes that train together, started by torchrun: one, where it was not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import gather_object

T = TypeVar("T")


def make_accelerator() -> Accelerator:
    """The devices of this process, joined with all others that torchrun started."""
    device = torch.accelerator.current_accelerator()
    alone = "LOCAL_RANK" not in os.environ
    # without being told, Accelerate joins processes on GPUs alone, and each would train by itself
    return Accelerator(cpu=not alone and (device is None or device.type == "mps"))


def mine(items: Sequence[T]) -> Sequence[T]:
    """The share of this process: every k-th of what is sorted by length, so that all have alike."""
    state = PartialState()
    return items[state.process_index :: state.num_processes]


def gather(items: list[Any]) -> list[Any]:
    """The items of all processes, in each of them."""
    gathered: list[Any] = gather_object(items)
    return gathered


def total(values: list[float]) -> list[float]:
    """Each value summed over all processes, the same bits in each of them."""
    state = PartialState()
    if state.num_processes == 1:
        return values
    summed = torch.tensor(values, dtype=torch.float64, device=state.device)
    torch.distributed.all_reduce(summed)
    return summed.tolist()
