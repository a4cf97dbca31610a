"""Run a table of docs/results.md again: train its models, evaluate them, print the results.

    python reproduce/run.py cmudict --data DIR [--out runs/cmudict] [--only global ...] [FLAG ...]

DIR holds the data, or a clone of the repository that has them: docs/results.md says where they are
from, and so does this where they are missing. All that is made is below --out, with log.txt, which
has every command of luong that was run. The same command goes on where it was stopped. --only runs
some of the models; what else is given goes to every `luong train`, such as `--training.precision
bf16` or, for a quick look, `--training.updates 100 --training.validate_every 100`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments import EXPERIMENTS
from lab import Lab


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment", choices=EXPERIMENTS, help="the table")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data")
    parser.add_argument("--out", type=Path, help="the folder of what is made")
    parser.add_argument("--only", nargs="+", default=[], help="models, by name; without it, all")
    arguments, flags = parser.parse_known_args()
    if not arguments.data.is_dir():
        parser.error(f"--data: {arguments.data} is not a folder")
    out = arguments.out or Path("runs") / arguments.experiment
    EXPERIMENTS[arguments.experiment](Lab(out, arguments.data, arguments.only, flags))


if __name__ == "__main__":
    main()
