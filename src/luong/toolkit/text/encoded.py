"""Encoded examples in an Arrow file, written in bounded memory and mapped from disk."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from luong.seq2seq.model import END
from luong.toolkit import files
from luong.toolkit.errors import ToolkitError
from luong.toolkit.text.batches import Example, examples
from luong.toolkit.text.lines import Pair
from luong.toolkit.text.vocabulary import Vocabulary

_CHARACTERS = 250_000  # characters that are encoded at a time
_SYMBOLS = pa.list_(pa.int32())
_SCHEMA = pa.schema([("source", _SYMBOLS), ("target", _SYMBOLS)])


class _Lists(NamedTuple):
    """A column of lists, in the memory of an Arrow file."""

    ends: NDArray[np.int32]  # where each list starts, and where the last one ends
    values: NDArray[np.int32]

    @classmethod
    def of(cls, column: pa.ListArray, size: int) -> _Lists:
        """Return the lists of a column: symbols below `size`, END last. Raises ValueError."""
        column.validate(full=True)
        if column.null_count or column.values.null_count:
            raise ValueError("something is missing in it")
        lists = cls(column.offsets.to_numpy(), column.values.to_numpy())
        used = lists.values[lists.ends[0] : lists.ends[-1]]
        if (np.diff(lists.ends) < 1).any() or (lists.values[lists.ends[1:] - 1] != END).any():
            raise ValueError("a side of a pair has no end")
        if used.size and not 0 <= used.min() <= used.max() < size:
            raise ValueError(f"a symbol is not among the {size:,} of the vocabulary")
        return lists

    def row(self, i: int) -> list[int]:
        row: list[int] = self.values[self.ends[i] : self.ends[i + 1]].tolist()
        return row


class Examples(Sequence[Example]):
    """The examples of a corpus in symbols, in an Arrow file that is mapped, not read.

    `sizes` are those of the vocabularies. `lengths` (examples, 2), int32, holds the numbers of
    source and of target symbols with END.
    """

    def __init__(self, path: Path, sizes: tuple[int, int]) -> None:
        with files.opened(path):  # a file
            pass
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            if reader.schema != _SCHEMA:
                raise ValueError("its columns are not those of symbols")
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
            self._sides = [
                [_Lists.of(batch.column(i), size) for batch in batches]
                for i, size in enumerate(sizes)
            ]
            if not sum(batch.num_rows for batch in batches):
                raise ValueError("no pairs in it")
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ToolkitError(f"{path}: damaged ({' '.join(str(error).split())})") from error
        self._starts: list[int] = [0, *accumulate(batch.num_rows for batch in batches)]
        self.lengths: NDArray[np.int32] = np.stack(
            [np.concatenate([np.diff(lists.ends) for lists in side]) for side in self._sides],
            axis=1,
        )

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        if isinstance(index, slice):
            return self.take(range(*index.indices(len(self))))
        i = range(len(self))[index]  # allows negative indices; raises IndexError
        batch = bisect_right(self._starts, i) - 1
        row = i - self._starts[batch]
        source, target = (side[batch].row(row) for side in self._sides)
        return Example(source, target)

    def take(self, indices: Iterable[int]) -> list[Example]:
        """Return the examples at `indices`, in their order."""
        return [self[int(i)] for i in indices]


def write(pairs: Iterator[Pair], source: Vocabulary, target: Vocabulary, path: Path) -> None:
    """Write the symbols of `pairs` to an Arrow file, in record batches of two columns."""
    with path.open("wb") as file, pa.ipc.new_file(file, _SCHEMA) as writer:
        for chunk in _chunks(pairs):
            sides = zip(*examples(chunk, source, target), strict=True)
            columns = [pa.array(side, _SYMBOLS) for side in sides]
            writer.write_batch(pa.record_batch(columns, schema=_SCHEMA))


def _chunks(pairs: Iterator[Pair]) -> Iterator[list[Pair]]:
    """Yield the pairs in chunks whose symbols fit into a bounded memory."""
    chunk, characters = list[Pair](), 0
    for pair in pairs:
        chunk.append(pair)
        characters += len(pair.source) + len(pair.target)
        if characters >= _CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk
