"""Symbols in batches: of similar length, padded."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from luong.seq2seq.model import END, PAD, START

_POOL = 64  # batches whose pairs are sorted by length together, while training


class Example(NamedTuple):
    """A pair in symbols, END at the end of each side."""

    source: list[int]
    target: list[int]


class Batch(NamedTuple):
    """Padded symbols, as `Seq2Seq` takes them."""

    source: Tensor  # (batch, m + 1), END at the end of each row
    lengths: Tensor  # (batch,), END not counted
    previous: Tensor  # (batch, n), START first
    target: Tensor  # (batch, n), END at the end of each row

    def to(self, device: torch.device) -> Batch:
        return Batch(*(x.to(device, non_blocking=True) for x in self))


def collate(examples: Sequence[Example]) -> Batch:
    """One batch of all `examples`."""
    source, lengths = sources([example.source for example in examples])
    target = pad([example.target for example in examples])
    previous = target.roll(1, 1)
    previous[:, 0] = START
    return Batch(source, lengths, previous.masked_fill(previous == END, PAD), target)


def sources(rows: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
    """Padded sources that end with END, and their lengths without it."""
    return pad(rows), torch.tensor([len(row) - 1 for row in rows])


def pad(rows: Sequence[list[int]]) -> Tensor:
    """(rows, longest), PAD after the end of each row."""
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def endless(examples: Sequence[Example], size: int, seed: int) -> Iterator[Batch]:
    """Batches without end, epoch after epoch, each in another order that `seed` determines."""
    rng = random.Random(seed)
    while True:
        order = rng.sample(examples, len(examples))
        pools = (order[i : i + size * _POOL] for i in range(0, len(order), size * _POOL))
        batches = [batch for pool in pools for batch in by_length(pool, size)]
        rng.shuffle(batches)
        yield from map(collate, batches)


def by_length(examples: Sequence[Example], size: int) -> list[list[Example]]:
    """Chunks of `size` examples of similar length."""
    ranked = sorted(examples, key=lambda example: (len(example.source), len(example.target)))
    return [ranked[i : i + size] for i in range(0, len(ranked), size)]
