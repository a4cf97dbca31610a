"""metrics.csv: a row for each validation."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from luong.toolkit import files
from luong.toolkit.errors import ToolkitError

LABELS = {"per": "PER", "wer": "WER", "exact": "exact", "bleu": "BLEU"}  # of columns dev_...
_MOST = 1 << 24  # bytes
_COLUMNS = 50
_ROWS = 100_000


def text(rows: Sequence[Mapping[str, float]]) -> str:
    """Return the content of metrics.csv."""
    table = io.StringIO()
    names = list(rows[0]) if rows else ["update"]
    writer = csv.DictWriter(table, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return table.getvalue()


def read(path: Path) -> dict[str, list[float]]:
    """Return the columns, by their names; an empty cell is NaN.

    A file that is no table of numbers, of a sensible size, is refused.
    """
    content = files.read(path, _MOST)
    try:
        lines = list(islice(csv.reader(content.decode("utf-8-sig").splitlines()), _ROWS + 2))
    except (csv.Error, ValueError) as error:
        raise ToolkitError(f"{path}: not a table: {error}") from error
    names, *lines = lines or [[]]
    if len(names) > _COLUMNS or len(lines) > _ROWS:
        size = f"at most {_COLUMNS} columns and {_ROWS:,} rows"
        raise ToolkitError(f"{path}: expected a table of {size}, got more")
    for number, line in enumerate(lines, 2):
        if len(line) != len(names):
            raise ToolkitError(f"{path}:{number}: expected {len(names)} cells, got {len(line)}")
    table = {}
    for name, cells in zip(names, zip(*lines, strict=True), strict=False):
        if name in table:
            raise ToolkitError(f"{path}: two columns {name!r}")
        table[name] = [_number(cell, f"{path}:{k}: {name}") for k, cell in enumerate(cells, 2)]
    return table


def _number(cell: str, where: str) -> float:
    try:
        return float(cell or "nan")
    except ValueError:
        raise ToolkitError(f"{where}: expected a number, got {cell[:80]!r}") from None
