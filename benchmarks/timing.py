"""What the benchmarks share: interleaved runs, comparison with float64, what the machine is."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

import luong

Function = Callable[..., Tensor]
Call = Callable[[], object]


def forward(function: Function, tensors: Sequence[Tensor]) -> Call:
    """A call without gradients."""

    def call() -> None:
        with torch.no_grad():
            function(*tensors)

    return call


def both(
    function: Function, tensors: Sequence[Tensor], grad: Tensor, parameters: Sequence[Tensor] = ()
) -> Call:
    """A call and its backward pass, to tensors and parameters, from the dense gradient `grad`."""

    def call() -> None:
        torch.autograd.grad(function(*tensors), [*tensors, *parameters], grad)

    return call


def seconds(call: Call) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def medians(calls: Mapping[str, Call], runs: int, least: float = 5e-3) -> dict[str, float]:
    """Median seconds of each call, of interleaved runs that last `least` seconds each, or a call.

    What compiles on its first call has to have had that call.
    """
    repeats = {}
    for name, call in calls.items():
        first = seconds(call)
        if first < 0.1:  # may have been slow for once
            first = seconds(call)
        repeats[name] = max(1, round(least / first))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(runs):
        for name, call in calls.items():
            if not times[name] or times[name][-1] < 0.1:
                call()  # brings its own data into the cache; a longer call does not need it
            times[name].append(sum(seconds(call) for _ in range(repeats[name])) / repeats[name])
    return {name: statistics.median(values) for name, values in times.items()}


def error(result: Tensor, truth: Tensor) -> float:
    """The largest difference, in units of the largest exact value."""
    return ((result.double() - truth).abs().max() / truth.abs().max().clamp(min=1e-300)).item()


def check(
    what: str,
    ours: Sequence[Tensor],
    theirs: Sequence[Tensor],
    exact: Sequence[Tensor],
    slack: float = 1e-6,
) -> None:
    """Stop unless each of our results is as near to float64 as theirs."""
    for mine, other, truth in zip(ours, theirs, exact, strict=True):
        errors = error(mine, truth), error(other, truth)
        if not errors[0] <= 2 * errors[1] + slack:
            raise SystemExit(f"{what}: results differ: {errors[0]:.1e} against {errors[1]:.1e}")


def machine() -> dict[str, object]:
    """Hardware, versions and date, for the file of figures."""
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "luong": luong.__version__,
        **{name: version(name) for name in ("numpy", "numba", "llvmlite")},
    }


def version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def describe() -> str:
    """The machine in a line."""
    facts = machine()
    return (
        f"{facts['cpu']}, {facts['threads']} threads, {facts['capability']}, "
        f"torch {facts['torch']}, numba {facts['numba']}, luong {facts['luong']}, {facts['date']}"
    )


def say(*words: object) -> None:
    print(*words)
    sys.stdout.flush()
