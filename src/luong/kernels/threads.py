"""Run slices of a kernel in several threads: in those of PyTorch, if it uses GNU OpenMP.

A PyTorch operation leaves its OpenMP threads spinning for milliseconds, in case another follows.
Threads of our own would share the cores with them, so kernels run in these threads.
Without GNU OpenMP, and after a fork, which it does not survive, a small pool of Python threads
serves. numba's own pool cannot: it aborts the process when two Python threads enter it at once.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch

from luong.kernels import PROCESS

# Less than this many elements of n x m x d (about 0.05 ms) is not worth another thread.
_GRAIN = 1 << 19

_Region = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Parallel = ctypes.CFUNCTYPE(None, _Region, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)


def each(kernel: Callable[..., None], *args: Any, tasks: int, cost: int) -> None:
    """Call kernel(*args, start, stop) until range(tasks) is done, in several threads if that pays.

    There are at most torch.get_num_threads(). `cost` is the number of elements of one task. Kernels
    release the GIL.
    """
    threads = min(torch.get_num_threads(), tasks, tasks * cost // _GRAIN)
    if threads <= 1:
        kernel(*args, 0, tasks)
        return
    step = min(tasks // threads, _GRAIN // cost + 1)
    starts = iter(range(0, tasks, step))  # shared: any free thread takes the next piece
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for start in starts:
                kernel(*args, start, min(start + step, tasks))
        except BaseException as error:  # no exception may pass through OpenMP
            failed.append(error)

    run = _openmp() if os.getpid() == PROCESS else None
    (run or _pool(os.getpid()))(work, threads)
    if failed:
        raise failed[0]


@cache
def _openmp() -> Callable[[Callable[[], None], int], None] | None:
    """Return a function that runs another in all threads of PyTorch's pool; None without a pool."""
    try:
        parallel = _Parallel(("GOMP_parallel", ctypes.CDLL(None)))
    except (AttributeError, OSError, TypeError):
        return None

    def run(work: Callable[[], None], threads: int) -> None:
        parallel(_Region(lambda _: work()), None, threads, 0)

    return run


@cache
def _pool(process: int) -> Callable[[Callable[[], None], int], None]:
    """Return the same for Python threads; a forked process has none of those of its parent."""
    executor = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="luong")

    def run(work: Callable[[], None], threads: int) -> None:
        helpers = [executor.submit(work) for _ in range(threads - 1)]
        work()
        for helper in helpers:
            if not helper.cancel():
                helper.result()

    return run
