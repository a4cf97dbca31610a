"""Arrow files of encoded examples that are damaged, or none at all."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from luong.toolkit.errors import ToolkitError
from luong.toolkit.text.encoded import Examples

SYMBOLS = pa.list_(pa.int32())


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"source": [[5, 2]]}, "its columns are not those of symbols"),
        ({"source": [[5, 2]], "target": ["ab"]}, "its columns are not those of symbols"),
        ({"source": pa.array([], SYMBOLS), "target": pa.array([], SYMBOLS)}, "no pairs in it"),
        ({"source": pa.array([None], SYMBOLS)}, "something is missing in it"),
        ({"source": pa.array([[None, 2]], SYMBOLS)}, "something is missing in it"),
        ({"source": pa.array([[]], SYMBOLS)}, "a side of a pair has no end"),
        ({"source": pa.array([[5, 5]], SYMBOLS)}, "a side of a pair has no end"),
        ({"source": pa.array([[-1, 2]], SYMBOLS)}, "a symbol is not among the 7 of the vocabulary"),
        ({"target": pa.array([[9, 2]], SYMBOLS)}, "a symbol is not among the 9 of the vocabulary"),
    ],
)
def test_examples_that_cannot_be(tmp_path: Path, columns: dict[str, object], reason: str) -> None:
    if reason != "its columns are not those of symbols":
        columns = {name: pa.array([[5, 2]], SYMBOLS) for name in ("source", "target")} | columns
    batch = pa.record_batch(columns)
    path = tmp_path / "train.arrow"
    with pa.ipc.new_file(str(path), batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(ToolkitError, match=re.escape(f"{path}: damaged (")) as caught:
        Examples(path, (7, 9))
    assert reason in str(caught.value)


@pytest.mark.parametrize("last", [5000, -1, 0])
def test_offsets_that_cannot_be(tmp_path: Path, last: int) -> None:
    path = tmp_path / "train.arrow"
    columns = {"source": [[5] * 1012 + [2]], "target": [[5, 2]]}
    batch = pa.record_batch({name: pa.array(side, SYMBOLS) for name, side in columns.items()})
    with pa.ipc.new_file(str(path), batch.schema) as writer:
        writer.write_batch(batch)
    assert Examples(path, (7, 9))[0] == (columns["source"][0], columns["target"][0])
    content = bytearray(path.read_bytes())
    at = content.rindex(np.array([0, 1013], np.int32).tobytes()) + 4  # pyarrow writes no such file
    content[at : at + 4] = last.to_bytes(4, sys.byteorder, signed=True)
    path.write_bytes(content)
    with pytest.raises(ToolkitError, match=re.escape(f"{path}: damaged (")):
        Examples(path, (7, 9))


def test_a_pipe_for_a_corpus_in_symbols(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.arrow")
    with pytest.raises(ToolkitError, match=r"train\.arrow: expected a file, got a pipe"):
        Examples(tmp_path / "train.arrow", (7, 9))
