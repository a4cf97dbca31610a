"""Preparation of a large corpus: bounded memory, and found again at once."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

MANY = 5_000_000
STEPS = """
import json, random, resource, sys, time
from pathlib import Path
from rich.console import Console
from luong.seq2seq import Settings, build
from luong.toolkit.text import batches
from luong.toolkit.config import Data
from luong.toolkit.training.progress import Journal
from luong.toolkit.training.preparing import prepare

out, data = Path(sys.argv[3]), Data(sys.argv[1], sys.argv[2])
began = time.monotonic()
prepared = prepare(data, out, Journal(Console(stderr=True)))
done = time.monotonic()
again = prepare(data, out, Journal(Console(stderr=True)))
found = time.monotonic()
model = build(Settings(16, 16), len(again.source), len(again.target))
rng, shortest = random.Random(1), again.train.lengths[:, 0].argsort()
for order in (rng.sample(range(len(again.train)), 128), shortest[:128], shortest[-128:]):
    batch = batches.collate(again.train.take(order))
    model(batch.source, batch.lengths, batch.previous).sum().backward()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps([len(again.train), peak, done - began, found - done]))
"""


@pytest.mark.slow
def test_five_million_pairs_train_in_bounded_memory(tmp_path: Path) -> None:
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 8))) for _ in range(20_000)]
    with (tmp_path / "train.tsv").open("w") as file:
        for _ in range(MANY):
            size = rng.randrange(1, 5)
            chosen = rng.choices(words, k=2 * size)
            file.write(f"{' '.join(chosen[:size])}\t{' '.join(chosen[size:])}\n")
    (tmp_path / "dev.tsv").write_text("a b\tc d\n")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            STEPS,
            *(str(tmp_path / n) for n in ("train.tsv", "dev.tsv", "run")),
        ],
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    pairs, peak, first, second = json.loads(done.stdout)
    print(f"{pairs:,} pairs: {peak / 2**20:,.0f} MiB, {first:.0f} s, then {second:.1f} s")
    assert pairs == MANY
    assert peak < 1.5 * 2**30
    assert second < first / 10
