"""The processes that train together, started by torchrun; without it there is one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import gather_object

from luong.toolkit import torchrun
from luong.toolkit.errors import ToolkitError
from luong.toolkit.torchrun import Process

T = TypeVar("T")


def make_accelerator() -> Accelerator:
    """Return the devices of this process, joined with all others that torchrun started."""
    device = torch.accelerator.current_accelerator()
    Process.here()  # reports wrong variables before Accelerate reads them
    # otherwise Accelerate joins processes only on GPUs, and each would train by itself
    cpu = torchrun.started() and (device is None or device.type == "mps")
    return Accelerator(cpu=cpu, mixed_precision="no")  # the loop has its own accumulation


@contextmanager
def connected() -> Iterator[None]:
    """Turn the end of another process, or of its machine, into an error of one line."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.distributed.DistError) and "gloo" not in str(error).lower():
            raise
        raise ToolkitError(
            "the connection to another process of this training was lost (see what that one said); "
            "the same command, for all of them, goes on from the last checkpoint"
        ) from error


def mine(items: Sequence[T]) -> Sequence[T]:
    """Return this process's share of items sorted by length: every k-th, for k processes."""
    state = PartialState()
    return items[state.process_index :: state.num_processes]


def gather(items: list[Any]) -> list[Any]:
    """Return the items of all processes, in each of them."""
    gathered: list[Any] = gather_object(items)
    return gathered


def total(values: list[float]) -> list[float]:
    """Return each value summed over all processes, the same bits in each of them."""
    state = PartialState()
    if state.num_processes == 1:
        return values
    summed = torch.tensor(values, dtype=torch.float64, device=state.device)
    torch.distributed.all_reduce(summed)
    return summed.tolist()
