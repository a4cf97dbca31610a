from __future__ import annotations

from itertools import chain, islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from luong.seq2seq.model import END, PAD, START
from luong.toolkit.text import batches
from luong.toolkit.text.batches import Example, Place, Stream

LENGTHS = np.array([[1 + i % 7, 1 + i % 5] for i in range(101)], dtype=np.int32)


def epoch(stream: Stream) -> list[list[int]]:
    """All batches of the epoch that comes next."""
    number, found = stream.place.epoch, list[list[int]]()
    while stream.place.epoch == number:
        found.append(next(stream).tolist())
    return found


def test_collate() -> None:
    batch = batches.collate([Example([5, 6, END], [7, END]), Example([5, END], [8, 9, END])])
    assert batch.source.tolist() == [[5, 6, END], [5, END, PAD]]
    assert batch.lengths.tolist() == [2, 1]
    assert batch.target.tolist() == [[7, END, PAD], [8, 9, END]]
    assert batch.previous.tolist() == [[START, 7, PAD], [START, 8, 9]]


def test_every_pair_comes_once_an_epoch_in_an_order_of_its_own() -> None:
    stream = Stream(LENGTHS, 10, seed=3)
    first, second = epoch(stream), epoch(stream)
    assert len(first) == len(second) == 11
    for found in (first, second):
        assert sorted(chain.from_iterable(found)) == list(range(101))
    assert first != second


def test_the_seed_determines_the_order() -> None:
    one, same, other = (epoch(Stream(LENGTHS, 10, seed=seed)) for seed in (3, 3, 4))
    assert one == same
    assert one != other


@pytest.mark.parametrize("unit", ["pairs", "tokens"])
def test_a_stream_goes_on_from_any_place(unit: str) -> None:
    stream = Stream(LENGTHS, 23, unit, seed=3)
    places, found = [stream.place], [next(stream).tolist() for _ in range(60)]
    stream = Stream(LENGTHS, 23, unit, seed=3)
    for expected in found:
        again = Stream(LENGTHS, 23, unit, seed=3, place=stream.place)
        assert next(again).tolist() == next(stream).tolist() == expected
        assert again.place == stream.place
        places.append(stream.place)
    assert len(set(places)) == 61
    assert places[-1].epoch > 1


def test_batches_are_of_similar_length() -> None:
    lengths = [LENGTHS[batch, 0] for batch in islice(Stream(LENGTHS, 10, seed=1), 11)]
    assert max(int(batch.max() - batch.min()) for batch in lengths) <= 1
    assert np.concatenate(lengths).max() - np.concatenate(lengths).min() == 6


def test_the_last_batch_of_an_epoch_is_one_of_many() -> None:
    sizes = [len(batch) for batch in epoch(Stream(LENGTHS, 10, seed=2))]
    assert sorted(sizes) == [1, *[10] * 10]


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=60),
    st.integers(1, 80),
)
def test_batches_hold_as_many_tokens_as_fit(pairs: list[tuple[int, int]], size: int) -> None:
    lengths = np.array(pairs, dtype=np.int32)
    found = epoch(Stream(lengths, size, "tokens", seed=1))
    assert sorted(chain.from_iterable(found)) == list(range(len(pairs)))
    for batch in found:
        assert padded(lengths[batch]) <= size or len(batch) == 1


def test_no_batch_of_tokens_could_take_in_the_next_pair() -> None:
    found = epoch(Stream(LENGTHS, 40, "tokens", seed=1))
    order = sorted(found, key=lambda batch: LENGTHS[batch].tolist())
    for batch, following in pairwise(order):
        assert padded(LENGTHS[[*batch, following[0]]]) > 40


def padded(lengths: NDArray[np.int32]) -> int:
    return int(len(lengths) * lengths.max())


def test_a_place_is_past_every_batch_that_came() -> None:
    stream = Stream(LENGTHS, 51, seed=1)
    places = [stream.place, *(stream.place for _ in islice(stream, 4))]
    assert places == [Place(0, 0), Place(0, 1), Place(1, 0), Place(1, 1), Place(2, 0)]
