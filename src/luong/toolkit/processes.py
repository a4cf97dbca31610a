"""The processes that train together, started by torchrun: one, where it was not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import gather_object

T = TypeVar("T")


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
