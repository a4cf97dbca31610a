"""Slices of a kernel in a small pool of Python threads.

Kernels release the GIL. numba's own pool is not used: it aborts the process when two Python threads
enter it at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch

# Less than this many elements of n x m x d (about 0.05 ms) is not worth another thread.
_GRAIN = 1 << 19


def each(kernel: Callable[..., None], *args: Any, tasks: int, cost: int) -> None:
    """kernel(*args, start, stop) over range(tasks), in torch.get_num_threads() threads if it pays.

    `cost` is the number of elements of one task.
    """
    threads = min(torch.get_num_threads(), tasks, tasks * cost // _GRAIN)
    if threads <= 1:
        kernel(*args, 0, tasks)
        return
    step = min(tasks // threads, _GRAIN // cost + 1)
    starts = iter(range(0, tasks, step))  # shared: whoever is free takes the next piece

    def work() -> None:
        for start in starts:
            kernel(*args, start, min(start + step, tasks))

    helpers = [_pool().submit(work) for _ in range(threads - 1)]
    work()
    for helper in helpers:
        if not helper.cancel():
            helper.result()


@cache
def _pool() -> ThreadPoolExecutor:
    os.register_at_fork(
        after_in_child=_pool.cache_clear
    )  # a child has none of its parent's threads
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="luong")
