from __future__ import annotations

import os
from collections.abc import Set
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luong.toolkit.errors import ToolkitError
from luong.toolkit.inference import links
from luong.toolkit.inference.links import Gold, Link

LINKS = st.frozensets(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=14)


@given(LINKS)
def test_what_is_written_is_read(some: Set[Link]) -> None:
    assert links.read(links.write(some), "f:1") == some


def test_written_in_order_of_the_target() -> None:
    assert links.write({(2, 0), (0, 1), (10, 1), (9, 1)}) == "2-0 0-1 9-1 10-1"


def test_gold_links() -> None:
    gold = links.read_gold("1-1 2p1 1-1 3-12", "gold:1", base=1)
    assert gold.sure == {(0, 0), (2, 11)}
    assert gold.possible == {(0, 0), (1, 0), (2, 11)}
    assert links.read_gold("", "gold:2") == (set(), set())


@pytest.mark.parametrize(
    ("line", "base", "message"),
    [
        ("0-1 x", 0, "f:3: expected links such as 0-2 or 0p2, got 'x'"),
        ("0-", 0, "got '0-'"),
        ("-1-2", 0, "got '-1-2'"),
        ("1–2", 0, "got '1–2'"),
        ("٣-2", 0, "got '٣-2'"),
        ("1-1 0-1", 1, "f:3: positions count from 1, but here is 0-1"),
    ],
)
def test_what_is_not_a_link(line: str, base: int, message: str) -> None:
    with pytest.raises(ToolkitError, match=message):
        links.read_gold(line, "f:3", base)


def test_a_possible_link_is_not_an_output() -> None:
    with pytest.raises(ToolkitError, match="f:1: expected links i-j"):
        links.read("0-0 1p1", "f:1")


def test_rates_worked_by_hand() -> None:
    first = {(0, 0), (1, 1), (2, 1)}, Gold({(0, 0), (1, 2)}, {(0, 0), (1, 2), (2, 1)})
    # |A| 3, |S| 2, A ∩ S = {00}, A ∩ P = {00, 21}
    result = links.agreement([first])
    assert result.aer == pytest.approx(100 * (1 - (1 + 2) / (3 + 2)))
    assert result.precision == pytest.approx(100 * 2 / 3)
    assert result.recall == pytest.approx(100 * 1 / 2)
    second = {(0, 0)}, Gold({(0, 0), (1, 1), (2, 2)}, {(0, 0), (1, 1), (2, 2)})
    # sums over both: |A| 4, |S| 5, sure hits 2, possible hits 3; not the mean of two rates
    result = links.agreement([first, second])
    expected: tuple[Any, ...] = (
        2,
        pytest.approx(100 * (1 - 5 / 9)),
        pytest.approx(100 * 3 / 4),
        pytest.approx(100 * 2 / 5),
    )
    assert result == expected


def test_right_and_wrong_altogether() -> None:
    gold = Gold({(0, 0)}, {(0, 0), (1, 1)})
    assert links.agreement([({(0, 0), (1, 1)}, gold)]).aer == 0
    assert links.agreement([({(0, 1)}, gold)]) == (1, 100, 0, 0)


def test_intersection_and_union() -> None:
    forward, backward = {(0, 0), (1, 1)}, {(1, 1), (2, 1)}
    assert links.join(forward, backward, "intersection") == {(1, 1)}
    assert links.join(forward, backward, "union") == {(0, 0), (1, 1), (2, 1)}
    with pytest.raises(ValueError, match=r"how: expected one of intersection, .* got 'xor'"):
        links.join(forward, backward, "xor")


def test_growing_worked_by_hand() -> None:
    # (1, 1) is agreed on; (1, 2) touches it and word 2 has no link yet; (2, 2) touches (1, 2) and
    # word 2 of the source has none; (4, 4) touches nothing, but both its words are without a link;
    # (1, 4) has a linked word and touches nothing: it stays out
    forward, backward = {(1, 1), (1, 2), (4, 4), (1, 4)}, {(1, 1), (2, 2)}
    grown = links.join(forward, backward, "grow-diag-final-and")
    assert grown == {(1, 1), (1, 2), (2, 2), (4, 4)}


@given(LINKS, LINKS)
def test_growing_as_published(forward: Set[Link], backward: Set[Link]) -> None:
    """Against the pseudo-code of Koehn's thesis and textbook, on dense tables."""
    rows, columns = range(6), range(5)
    table = [[(i, j) in forward and (i, j) in backward for j in columns] for i in rows]

    def free(i: int, j: int) -> tuple[bool, bool]:
        return not any(table[i]), not any(row[j] for row in table)

    around = [(-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)]
    added = True
    while added:
        added = False
        for i in rows:
            for j in columns:
                for di, dj in around if table[i][j] else []:
                    x, y = i + di, j + dj
                    if (x, y) in forward | backward and any(free(x, y)):
                        table[x][y] = added = True
    for direction in (forward, backward):
        for i in rows:
            for j in columns:
                if (i, j) in direction and all(free(i, j)):
                    table[i][j] = True
    expected = {(i, j) for i in rows for j in columns if table[i][j]}
    assert links.join(forward, backward, "grow-diag-final-and") == expected


@pytest.mark.skipif("LUONG_DATA" not in os.environ, reason="LUONG_DATA names no data directory")
@pytest.mark.parametrize(
    ("name", "aer", "precision", "recall"),
    [
        ("enfr", 4.07, 96.27, 95.42),
        ("roen", 20.75, 88.61, 71.68),
        ("jaen", 37.36, 72.74, 55.01),
        ("zhen", 13.31, 86.68, 86.70),
    ],
)
def test_published_systems(name: str, aer: float, precision: float, recall: float) -> None:
    """Output of awesome-align, as its authors evaluated it."""
    folder = Path(os.environ["LUONG_DATA"]) / "gold_alignments"
    system = (folder / f"{name}.system").read_text().splitlines()
    gold = (folder / f"{name}.gold").read_text().splitlines()
    result = links.agreement(
        (links.read(line, "system"), links.read_gold(wanted, "gold", base=1))
        for line, wanted in zip(system, gold, strict=True)
    )
    found = [round(rate, 2) for rate in (result.aer, result.precision, result.recall)]
    assert found == [aer, precision, recall]
