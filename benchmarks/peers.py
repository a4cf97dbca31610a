"""Time additive attention beside that of other packages, installed in an environment of their own.

    python benchmarks/peers.py [--runs 5] [--quick] [--json FILE] [PEER ...]

Makes .venv-peers at the root of the repository by `python -m venv` and pip (about 2 GB; more where
pip brings PyTorch with CUDA: put the CPU build into .venv-peers first), with torch and all that
constraints.txt names at the versions named there. luong is read from src. A peer that cannot be
installed is left out, with a line that says why. Needs nothing but Python and pip's index.

Neither torchaudio nor torchvision is installed: attention needs neither. That is why two packages
come without their dependencies, but with those that importing their attention takes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
HOME = ROOT / ".venv-peers"
PYTHON = HOME / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
HELD = HOME / "constraints.txt"
BASE = ["torch", "numpy", "lazy_loader", "numba"]
PEERS = {  # what comes with its dependencies, and what comes without
    "keras": (["keras"], []),
    "speechbrain": (
        ["hyperpyyaml", "joblib", "scipy", "tqdm", "huggingface_hub", "requests"],
        ["speechbrain"],
    ),
    "yoyodyne": ([], ["yoyodyne"]),
}


def pip(*arguments: str) -> str:
    """Run pip in the environment; "" or the first line that says what went wrong."""
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.returncode:
        return ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return (lines or done.stderr.strip().splitlines() or ["pip failed"])[0]


def make() -> None:
    """The environment, with what luong needs."""
    if not PYTHON.exists():
        venv.create(HOME, with_pip=True)
        (HOME / ".gitignore").write_text("*\n")
    problem = pip("install", "-c", str(ROOT / "constraints.txt"), *BASE)
    if problem:
        raise SystemExit(f"{HOME.name}: {problem}")
    if not HELD.exists():  # torch and the rest of BASE, and what those brought, as they are
        command = [str(PYTHON), "-m", "pip", "freeze"]
        HELD.write_text(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def install(name: str) -> str:
    """A peer, by constraints.txt or else holding BASE alone; "" or why not."""
    full, bare = PEERS[name]
    problem = ""
    for constraints in (ROOT / "constraints.txt", HELD):
        for packages, options in ((full, ()), (bare, ("--no-deps",))):
            if not packages:
                continue
            problem = pip("install", "-c", str(constraints), *options, *packages)
            if problem:
                break
        else:
            return ""
    return problem


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peers", nargs="*", metavar="PEER", help=", ".join(PEERS))
    parser.add_argument("--install-only", action="store_true")
    parser.add_argument("--runs", type=int, default=5, help="at least 5")
    parser.add_argument("--quick", action="store_true", help="2 runs")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    arguments = parser.parse_args()
    unknown = set(arguments.peers) - set(PEERS)
    if unknown:
        parser.error(f"expected {', '.join(PEERS)}, got {', '.join(sorted(unknown))}")
    if arguments.runs < 5 and not arguments.quick:
        parser.error("--runs: expected at least 5, or --quick")
    make()
    ready = []
    for name in arguments.peers or PEERS:
        problem = install(name)
        if problem:
            print(f"{name}: not installed: {problem}", flush=True)
        else:
            ready.append(name)
    if arguments.install_only:
        return
    command = [str(PYTHON), str(Path(__file__).with_name("peers_timing.py")), *ready]
    command += ["--runs", str(2 if arguments.quick else arguments.runs)]
    command += ["--json", str(arguments.json.absolute())] if arguments.json else []
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path, "KERAS_BACKEND": "torch"}
    sys.exit(subprocess.run(command, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
