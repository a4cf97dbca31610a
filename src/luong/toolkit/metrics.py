"""metrics.csv: a row for each validation."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from luong.toolkit import files
from luong.toolkit.errors import ToolkitError

_MOST = 1 << 24  # bytes
_COLUMNS = 50
_ROWS = 100_000


def text(rows: Sequence[Mapping[str, float]]) -> str:
    """The content of metrics.csv."""
    table = io.StringIO()
    names = list(rows[0]) if rows else ["update"]
    writer = csv.DictWriter(table, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return table.getvalue()


def read(path: Path) -> dict[str, list[float]]:
    """The columns that hold numbers, by their names; an empty cell is NaN.

    A file that is no table of a sensible size is refused.
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
    table = dict[str, list[float]]()
    for name, cells in zip(names, zip(*lines, strict=True), strict=False):
        with suppress(ValueError):
            table[name] = [float(cell or "nan") for cell in cells]
    return table
