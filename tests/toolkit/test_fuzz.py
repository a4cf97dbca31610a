"""A thousand damaged runs: what SECURITY.md promises, every verb."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from mutations import mutate
from training_runs import ENVIRONMENT, rows, small

from luong.toolkit.training import loop

pytestmark = pytest.mark.slow
SERVER = Path(__file__).parent / "fuzz_server.py"
BATCHES, PER_BATCH = 20, 50
VERBS = {
    "translate": ["translate", "run", "abc", "dd"],
    "align": ["align", "run", "--source", "source", "--target", "target"],
    "score": ["score", "run", "--source", "source", "--target", "target"],
    "evaluate": ["evaluate", "run", "--data", "dev.tsv"],
    "plot": ["plot", "run", "abc", "--out", "picture.png"],
    "curves": ["plot", "run", "--curves", "--out", "picture.png"],
    "check": ["check", "run/config.yaml"],
    "train": ["train", "run/config.yaml", "--out", "run"],
}


class Done(NamedTuple):
    status: int
    stdout: str
    stderr: str
    result: dict[str, bytes]  # files that the command made or changed, by their names


class Place:
    """A folder with a run and its corpora, and commands that run in copies of it."""

    def __init__(self, folder: Path, server: subprocess.Popen[str]) -> None:
        self.folder, self.server = folder, server
        self.intact = {verb: self.run(verb, self.copy()) for verb in VERBS}
        for verb, done in self.intact.items():
            assert done.status == 0, (verb, done)

    def copy(self) -> Path:
        there = self.folder.with_name("copy")
        if there.exists():
            shutil.rmtree(there)
        return Path(shutil.copytree(self.folder, there))

    def run(self, verb: str, there: Path) -> Done:
        before = _files(there)
        assert self.server.stdin
        assert self.server.stdout
        print(json.dumps({"argv": VERBS[verb], "cwd": str(there)}), file=self.server.stdin)
        self.server.stdin.flush()
        status, stdout, stderr = json.loads(self.server.stdout.readline())
        changed = {k: v for k, v in _files(there).items() if before.get(k) != v}
        return Done(status, stdout, stderr, changed)


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()  # what a link leads to, too
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("fuzz") / "place"
    folder.mkdir()
    config = small(folder, updates=12, validate_every=4, checkpoint_every=3)
    run = folder / "run"
    while not (run / "metrics.csv").exists() or len(rows(run)) < 2:
        loop.train(config, run, seconds=0)  # stopped: there is something to go on with
    for side, lines in (("source", "abc\ndd\n"), ("target", "a b c\nd:\n")):
        (folder / side).write_text(lines)
    command = [sys.executable, str(SERVER)]
    with subprocess.Popen(
        command, env=ENVIRONMENT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        yield Place(folder, server)


def fault(done: Done, intact: Done, name: str) -> str | None:
    """Return what is wrong with how a command on a damaged run ended."""
    outside = {path for path in done.result if not path.startswith("run/")} - {"picture.png"}
    lines = done.stderr.splitlines()
    if "Traceback" in done.stderr or "panicked" in done.stderr:
        return "traceback"
    if done.status not in (0, 1, 2):
        return "killed by a signal, or the limits of memory and time"
    if outside:
        return f"wrote {outside}"
    named = name in done.stderr
    if name == "metrics.csv" and done.status == 0:
        return None  # a table of text: who changes its numbers draws other curves
    if done.status:
        last = lines[-1] if lines else ""
        return None if last.startswith("luong: ") and named else "does not name the file"
    same = done.stdout == intact.stdout and _results(done) == _results(intact)
    return None if same or named else "another result without a word"


def _results(done: Done) -> dict[str, bytes]:
    """What people use: no checkpoints, logs or caches."""
    kept = ("picture.png", "run/model.safetensors", "run/metrics.csv")
    return {name: content for name, content in done.result.items() if name in kept}


@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_damaged_run_is_refused_or_changes_nothing(place: Place, batch: int) -> None:
    faults = []
    for seed in range(batch * PER_BATCH, (batch + 1) * PER_BATCH):
        rng = random.Random(seed)
        there = place.copy()
        files = sorted(path for path in (there / "run").rglob("*") if path.is_file())
        path = rng.choice([file for file in files if file.name != ".lock"])
        damage = mutate(path, files, rng)
        verb = rng.choice(list(VERBS))
        done = place.run(verb, there)
        wrong = fault(done, place.intact[verb], path.name)
        if wrong:
            faults.append(f"seed {seed}, {verb}, {damage}: {wrong}: {done.status} {done.stderr}")
    assert not faults, "\n".join(faults)
