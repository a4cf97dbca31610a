from __future__ import annotations

from itertools import chain, islice

import torch

from luong.seq2seq.model import END, PAD, START
from luong.toolkit import batches
from luong.toolkit.batches import Example

EXAMPLES = [Example([*range(4, 5 + i % 7), END], [4 + i, END]) for i in range(101)]


def epoch(stream: object, count: int) -> list[list[int]]:
    return [batch.target[:, 0].tolist() for batch in islice(stream, count)]


def test_collate() -> None:
    batch = batches.collate([Example([5, 6, END], [7, END]), Example([5, END], [8, 9, END])])
    assert batch.source.tolist() == [[5, 6, END], [5, END, PAD]]
    assert batch.lengths.tolist() == [2, 1]
    assert batch.target.tolist() == [[7, END, PAD], [8, 9, END]]
    assert batch.previous.tolist() == [[START, 7, PAD], [START, 8, 9]]


def test_every_example_comes_once_an_epoch_in_an_order_of_its_own() -> None:
    stream = batches.endless(EXAMPLES, 10, seed=3)
    first, second = epoch(stream, 11), epoch(stream, 11)
    for targets in (first, second):
        assert sorted(chain.from_iterable(targets)) == [4 + i for i in range(101)]
    assert first != second


def test_the_seed_determines_the_order() -> None:
    one, same, other = (epoch(batches.endless(EXAMPLES, 10, seed), 11) for seed in (3, 3, 4))
    assert one == same
    assert one != other


def test_batches_are_of_similar_length() -> None:
    sizes = [batch.lengths for batch in islice(batches.endless(EXAMPLES, 10, 1), 11)]
    assert max(int(lengths.max() - lengths.min()) for lengths in sizes) <= 1
    assert torch.cat(sizes).max() - torch.cat(sizes).min() == 6
