"""Runs the command `luong`, once for each result, and writes down what was run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import sources


class Lab:
    """A folder of models and results.

    Commands run in `out`, so that its files have short names and the folder can be moved. What is
    there is not made again: `luong train` goes on where it was, and a result is a file. log.txt has
    every command, what it said and measured, and its seconds.
    """

    def __init__(
        self, out: Path, data: Path, only: Sequence[str] = (), flags: Sequence[str] = ()
    ) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out, self.data = out.absolute(), data.absolute()
        self.only, self.flags = only, flags

    def files(self, source: str) -> dict[str, Path]:
        """The files of a source of data, by name."""
        return sources.find(source, self.data)

    def chosen(self, names: Iterable[str]) -> list[str]:
        """Those of `names` that are to be run."""
        names = list(names)
        for name in self.only:
            if name not in names:
                raise SystemExit(f"--only: expected some of {', '.join(names)}; got {name!r}")
        return [name for name in names if not self.only or name in self.only]

    def train(self, model: str, recipe: str, *flags: object) -> None:
        """Train `model`, or go on with it."""
        self._run(["train", recipe, "--out", model, *map(str, flags), *self.flags])

    def result(self, name: str, *arguments: object) -> Path:
        """The file `name`, which is what a command of luong puts out."""
        path = self.out / name
        measured = path.suffix == ".json"
        if not path.is_file():
            path.write_text(self._run([*map(str, arguments)], measured), encoding="utf-8")
        shown = path.read_text(encoding="utf-8").strip() if measured else "done"
        print(f"{name}: {shown}", flush=True)
        return path

    def _run(self, arguments: list[str], measured: bool = False) -> str:
        start = time.perf_counter()
        print("luong", *arguments, flush=True)
        command = [sys.executable, "-m", "luong.toolkit", *arguments]
        with (self.out / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"$ luong {' '.join(arguments)}\n")
            log.flush()
            done = subprocess.run(
                command, cwd=self.out, stdout=subprocess.PIPE, stderr=log, text=True, check=False
            )
            output = done.stdout.replace(f"{self.out.resolve()}/", "")  # a run names whole paths
            if measured:
                log.write(output)
            seconds = time.perf_counter() - start
            threads = os.environ.get("OMP_NUM_THREADS", "all")
            log.write(f"# {seconds:.0f} s, {threads} threads\n")
        if done.returncode:
            raise SystemExit(f"stopped, see {self.out / 'log.txt'}; the same command goes on")
        return output
