"""What the machine can do: multiply-adds and divisions per second, to put a loop's speed beside.

    python benchmarks/rate.py

Multiply-adds are those of torch.mm. Divisions are those of a compiled loop over numbers that stay
in the nearest cache (needs numba).
"""

from __future__ import annotations

import statistics
import threading
from typing import Any

import torch

from timing import say, seconds

# What the compiled loop does for each element of n x m x d, as it is written: additions,
# multiplications and multiply-adds, each one instruction; and divisions.
OPERATIONS = {
    "forward": (4.25, 0.5),
    "forward + backward": (4.25 + 6.5, 0.5 + 1),
}


def multiply_adds(threads: int, size: int = 2048, runs: int = 5) -> float:
    """float32 multiply-adds per second of torch.mm."""
    x, y = torch.randn(size, size), torch.randn(size, size)
    out = torch.empty(size, size)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        times = [seconds(lambda: torch.mm(x, y, out=out)) for _ in range(runs + 1)]
    finally:
        torch.set_num_threads(before)
    return size**3 / statistics.median(times[1:])


def divisions(threads: int, runs: int = 5) -> float | None:
    """float32 divisions per second of a vectorised loop, None without numba."""
    try:
        kernel, x = _division()
    except ImportError:
        return None
    rows = [x.copy() for _ in range(threads)]
    times = 20_000

    def work() -> None:
        helpers = [threading.Thread(target=kernel, args=(row, times)) for row in rows]
        for helper in helpers:
            helper.start()
        for helper in helpers:
            helper.join()

    work()
    return threads * times * len(x) / statistics.median(seconds(work) for _ in range(runs))


def _division() -> tuple[Any, Any]:
    import numpy as np
    from numba import njit

    @njit(nogil=True, error_model="numpy")
    def divide(x: Any, times: int) -> None:
        for _ in range(times):
            for i in range(len(x)):
                x[i] = np.float32(1.5) / x[i]

    return divide, np.linspace(1, 2, 1024, dtype=np.float32)


def rates() -> dict[str, dict[int, float | None]]:
    """Multiply-adds and divisions per second, with one thread and with all."""
    counts = sorted({1, torch.get_num_threads()})
    return {
        "multiply-adds": {threads: multiply_adds(threads) for threads in counts},
        "divisions": {threads: divisions(threads) for threads in counts},
    }


def fractions(
    elements: float, measure: str, found: dict[str, dict[int, float | None]]
) -> tuple[float, float | None]:
    """What share of the machine's two rates a loop of so many elements per second uses."""
    operations, quotients = OPERATIONS[measure]
    adds, divided = (list(x.values())[-1] for x in (found["multiply-adds"], found["divisions"]))
    share = elements * operations / (adds or float("nan"))
    return share, elements * quotients / divided if divided else None


def report(found: dict[str, dict[int, float | None]]) -> None:
    for kind, rate in found.items():
        for threads, value in rate.items():
            shown = "not measured: needs numba" if value is None else f"{value / 1e9:.1f} e9 / s"
            say(f"{kind:14} {threads} thread{'s' if threads > 1 else ' '}  {shown}")


if __name__ == "__main__":
    report(rates())
