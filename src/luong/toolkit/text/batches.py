"""Padded batches of pairs of similar length, in an order that can be resumed anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from luong.seq2seq.model import END, PAD, START
from luong.toolkit.text.lines import Pair
from luong.toolkit.text.vocabulary import Vocabulary

CELLS = 1 << 26  # most numbers in a tensor of a batch: a quarter of a gigabyte
_POOL = 64  # number of batches whose pairs are sorted by length together


class Example(NamedTuple):
    """A pair in symbols, END at the end of each side."""

    source: list[int]
    target: list[int]


def examples(pairs: Sequence[Pair], source: Vocabulary, target: Vocabulary) -> list[Example]:
    """Return the symbols of `pairs`."""
    sides = (
        source.encode([pair.source for pair in pairs]),
        target.encode([pair.target for pair in pairs]),
    )
    return [Example(*sides) for sides in zip(*sides, strict=True)]


class Batch(NamedTuple):
    """Padded symbols, as `Seq2Seq` takes them."""

    source: Tensor  # (batch, m + 1), END at the end of each row
    lengths: Tensor  # (batch,), END not counted
    previous: Tensor  # (batch, n), START first
    target: Tensor  # (batch, n), END at the end of each row

    def to(self, device: torch.device) -> Batch:
        return Batch(*(x.to(device, non_blocking=True) for x in self))


class Place(NamedTuple):
    """The place in the data that training has reached: the batch that comes next."""

    epoch: int = 0
    batch: int = 0


class Stream:
    """An endless stream of batches, each given by the indices of its pairs.

    Pairs are shuffled every epoch, sorted by length within pools of many batches, and cut into
    batches, which are shuffled again. An epoch depends only on the seed and its number, so that a
    stream can start at any `place`.
    """

    def __init__(
        self,
        lengths: NDArray[np.int32],  # (pairs, 2)
        size: int,
        unit: Literal["pairs", "tokens"] = "pairs",
        *,
        seed: int,
        place: Place | None = None,
    ) -> None:
        self.lengths, self.size, self.unit, self.seed = lengths, size, unit, seed
        self.place = place or Place()
        self._epoch = self._batches(self.place.epoch)
        if self.place.batch >= len(self._epoch):
            raise ValueError(f"batch {self.place.batch:,} of an epoch of {len(self._epoch):,}")

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        return self

    def __next__(self) -> NDArray[np.int64]:
        epoch, batch = self.place
        indices = self._epoch[batch]
        self.place = Place(epoch, batch + 1)
        if batch + 1 == len(self._epoch):
            self.place = Place(epoch + 1)
            self._epoch = self._batches(epoch + 1)
        return indices

    def _batches(self, epoch: int) -> list[NDArray[np.int64]]:
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(len(self.lengths))
        rows = self.size
        if self.unit == "tokens":
            rows = max(1, int(self.size / self.lengths.max(1).mean()))
        pools = (order[i : i + rows * _POOL] for i in range(0, len(order), rows * _POOL))
        batches = [batch for pool in pools for batch in self._cut(pool)]
        return [batches[i] for i in rng.permutation(len(batches))]

    def _cut(self, pool: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        pool = pool[by_length(self.lengths[pool])]
        longer = self.lengths[pool].max(1)
        start = 0
        while start < len(pool):
            rows = self.size
            if self.unit == "tokens":
                longest = np.maximum.accumulate(longer[start : start + self.size])
                padded = longest * np.arange(1, len(longest) + 1)
                rows = max(1, int(np.searchsorted(padded, self.size, side="right")))
            yield pool[start : start + rows]
            start += rows


def by_length(lengths: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the order of pairs with `lengths` (pairs, 2): by source, then by target length."""
    return np.lexsort((lengths[:, 1], lengths[:, 0]))


def collate(examples: Sequence[Example]) -> Batch:
    """Return one batch of all `examples`."""
    source, lengths = sources([example.source for example in examples])
    target = pad([example.target for example in examples])
    previous = target.roll(1, 1)
    previous[:, 0] = START
    return Batch(source, lengths, previous.masked_fill(previous == END, PAD), target)


def sources(rows: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
    """Return padded sources that end with END, and their lengths without it."""
    return pad(rows), torch.tensor([len(row) - 1 for row in rows], device="cpu")


def pad(rows: Sequence[list[int]]) -> Tensor:
    """Return the rows in one tensor (rows, longest), padded by PAD."""
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows], device="cpu")
