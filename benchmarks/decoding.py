"""Time decoding: words of the CMU Pronouncing Dictionary a second, beside yoyodyne's models.

    python benchmarks/decoding.py [--share N] [--rounds 3] [--threads N] [--no-peer] [--json FILE]

Both sides learn the dictionary for --updates updates of 128 pairs, with models of the same sizes
(training.py says which), and then decode the 11,994 test words, or every N-th of them with
--share N. luong is timed from lines to lines; yoyodyne's SoftAttentionLSTMModel, in .venv-peers as
training.py makes it, from batches to predictions, at the better of two batch sizes. The share of
words that come out right shows that both have learned. Then: what one line costs, how long the
command takes until its first line, and what bfloat16 changes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

import luong
from luong.seq2seq import Decoding
from luong.toolkit.inference.translator import Translator
from luong.toolkit.text import corpus
from peers import PYTHON, ROOT
from timing import describe, machine, say, seconds
from training import install

BEAMS = (1, 5)
SHAPE = ("--model.encoder_size=512", "--model.score=concat")


def train(out: Path, updates: int) -> None:
    """A model of the sizes that training.py compares."""
    command = [sys.executable, "-m", "luong.toolkit", "train", "g2p-en", "--out", str(out), *SHAPE]
    command += [f"--training.updates={updates}", f"--training.validate_every={updates}"]
    command += [f"--training.warmup={min(100, updates // 3)}"]
    subprocess.run(command, check=True)


def rates(
    translator: Translator, words: Sequence[str], right: dict[str, set[str]], rounds: int
) -> list[dict[str, Any]]:
    """Words a second, from lines to lines, and the share that is right."""
    rows = []
    for beam in BEAMS:
        found = translator.translate(words, Decoding(beam=beam))
        call = partial(translator.translate, words, Decoding(beam=beam))
        times = [seconds(call) for _ in range(rounds)]
        share = sum(f.text in right[word] for f, word in zip(found, words, strict=True))
        speed = len(words) / statistics.median(times)
        rows.append({"beam": beam, "words_per_second": speed, "right": share / len(words)})
    return rows


def lines(translator: Translator, words: Sequence[str]) -> dict[str, float]:
    """Median milliseconds of a line that comes by itself."""
    some = words[:: max(1, len(words) // 200)]
    return {
        str(beam): 1e3
        * statistics.median(
            seconds(partial(translator.translate, [w], Decoding(beam=beam))) for w in some
        )
        for beam in BEAMS
    }


def start(out: Path, rounds: int) -> float:
    """Median seconds from the start of the command to its first line."""
    command = [sys.executable, "-m", "luong.toolkit", "translate", str(out), "--beam", "5"]
    times = []
    for _ in range(rounds + 1):
        began = perf_counter()
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin
            assert process.stdout
            process.stdin.write(b"attention\n")
            process.stdin.flush()
            process.stdout.readline()
            times.append(perf_counter() - began)
            process.stdin.close()
    return statistics.median(times[1:])


def peer(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The same of yoyodyne, in its own environment."""
    install()
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures.json"
        command = [str(PYTHON), str(Path(__file__).with_name("decoding_timing.py"))]
        command += ["--json", str(figures), "--share", str(arguments.share)]
        command += ["--rounds", str(arguments.rounds), "--updates", str(arguments.updates)]
        path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
        environment = os.environ | {"PYTHONPATH": path}
        if arguments.threads:
            environment |= {"OMP_NUM_THREADS": str(arguments.threads)}
        subprocess.run(command, env=environment, check=True)
        found: list[dict[str, Any]] = json.loads(figures.read_text())
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=int, default=1, metavar="N", help="every N-th word")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=300, help="of either model")
    parser.add_argument("--threads", type=int, help="of PyTorch; all cores by default")
    parser.add_argument("--model", type=Path, help="the folder of a trained model, for luong")
    parser.add_argument("--no-peer", action="store_true", help="luong only")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    say(describe())
    right = defaultdict[str, set[str]](set)
    for pair in corpus.read("cmudict:test"):
        right[pair.source].add(pair.target)
    words = list(right)[:: arguments.share]
    figures: dict[str, Any] = {"machine": machine(), "words": len(words)}
    with tempfile.TemporaryDirectory() as folder:
        out = arguments.model or Path(folder) / "run"
        if not arguments.model:
            train(out, arguments.updates)
        translator = luong.load(out)
        figures["luong"] = rates(translator, words, right, arguments.rounds)
        figures["line_milliseconds"] = lines(translator, words)
        figures["start_seconds"] = start(out, arguments.rounds)
        half = Translator.load(out, dtype=torch.bfloat16)
        figures["luong, bf16"] = rates(half, words, right, arguments.rounds)
    if not arguments.no_peer:
        figures["yoyodyne"] = peer(arguments)
    say(f"\n{'':14}{'beam':>6}{'words / s':>12}{'right':>9}{'ratio':>9}")
    for name in ("luong", "luong, bf16", "yoyodyne"):
        for row in figures.get(name, ()):
            base = [r for r in figures.get("yoyodyne", ()) if r["beam"] == row["beam"]]
            row["ratio"] = row["words_per_second"] / base[0]["words_per_second"] if base else None
            ratio = f"{row['ratio']:8.1f}x" if base else ""
            speed = f"{row['words_per_second']:12,.0f}"
            say(f"{name:14}{row['beam']:6}{speed}{row['right']:9.1%}{ratio}")
    for beam, milliseconds in figures["line_milliseconds"].items():
        say(f"one line, beam {beam}: {milliseconds:.1f} ms")
    say(f"from the start of the command to its first line: {figures['start_seconds']:.2f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
