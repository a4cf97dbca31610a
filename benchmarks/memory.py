"""Peak memory of attention beyond its inputs and outputs, each measured in a process of its own.

    python benchmarks/memory.py [--length 16384]

(1, length, length, 256), float32. The peak is the resident set's (Linux: VmHWM, reset before the
call; elsewhere getrusage's), less what was resident before the call and less the results.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

MIB = 1 << 20
WIDTH = 256
CAP = 12 << 30  # the formula's array would need far more than a machine has: fail, not swap
TARGETS = {("ours", "forward"): 512, ("ours", "forward + backward"): 1024}  # MiB, at 16384


def child(name: str, measure: str, length: int) -> None:
    """Print the figure as JSON."""
    import torch

    import additive_formulas

    resource.setrlimit(resource.RLIMIT_DATA, (CAP, CAP))
    function = getattr(additive_formulas, name)
    count = {"ours": 4, "dot": 3}[name]

    def run(tensors: list[Any], grad: Any) -> int:
        """Bytes of the results."""
        if measure == "forward":
            with torch.no_grad():
                results = [function(*tensors)]
        else:
            context = function(*tensors)
            results = [context, *torch.autograd.grad(context, tensors, grad)]
        return sum(x.nbytes for x in results)

    small = additive_formulas.inputs((1, 64, 64, WIDTH))[:count]
    run(small, torch.ones(1, 64, WIDTH))  # compiles, starts threads
    tensors = additive_formulas.inputs((1, length, length, WIDTH))[:count]
    grad = torch.randn(1, length, WIDTH)
    before = _reset()
    outputs = run(tensors, grad)
    print(json.dumps(max(0, _peak() - before - outputs)))


def _reset() -> int:
    """Bytes now resident; the peak starts again from here where the system can do that."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    """Bytes."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return next(
        int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM")
    )


def measure(name: str, what: str, length: int) -> float | None:
    """MiB, or None where the process did not live to tell."""
    command = [sys.executable, __file__, "--child", name, what, "--length", str(length)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(*done.stderr.strip().splitlines()[-1:], file=sys.stderr)
        return None
    return json.loads(done.stdout) / MIB


def table(length: int) -> list[dict[str, Any]]:
    """Measure, print, return."""
    formula = length**2 * WIDTH * 4 / MIB
    print(f"memory beyond inputs and outputs, (1, {length}, {length}, {WIDTH})")
    print(f"{'the formula':14}{'its array alone':20}{formula:10.0f} MiB")
    rows = []
    for name in ("ours", "dot"):
        for what in ("forward", "forward + backward"):
            found = measure(name, what, length)
            target = TARGETS.get((name, what)) if length == 16384 else None
            met = None if target is None else found is not None and found < target
            rows.append({"name": name, "pass": what, "length": length, "MiB": found})
            rows[-1] |= {"target": target, "met": met}
            shown = f"more than {CAP // MIB}" if found is None else f"{found:.0f}"
            verdict = "" if target is None else f"({target}: {'met' if met else 'NOT met'})"
            print(f"{name:14}{what:20}{shown:>10} MiB {verdict}", flush=True)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        name, measure_name = arguments.child
        child(name, measure_name, arguments.length)
    else:
        table(arguments.length)
