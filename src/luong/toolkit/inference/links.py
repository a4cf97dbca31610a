"""Word alignments as sets of links: read, written, joined, and measured against gold ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from typing import NamedTuple

from luong.toolkit.errors import ToolkitError

Link = tuple[int, int]  # positions in source and target, from 0

JOINS = ("intersection", "union", "grow-diag-final-and")  # of links
PRODUCT = "product"  # of weights, see `alignment.align_both`
WAYS = (*JOINS, PRODUCT)
AGREED = 0.15  # the default threshold of PRODUCT
_NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


class Gold(NamedTuple):
    """The links that annotators gave a pair: the sure ones, and all possible ones."""

    sure: Set[Link]
    possible: Set[Link]  # the sure ones among them


class Agreement(NamedTuple):
    """The agreement of links A with sure links S and possible links P, over a corpus, in per cent.

    precision = |A ∩ P| / |A|,  recall = |A ∩ S| / |S|,
    aer = 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|)         (alignment error rate: Och and Ney, 2003)
    """

    pairs: int
    aer: float
    precision: float
    recall: float


def ordered(links: Iterable[Link]) -> list[Link]:
    """Return the links in order of the target, those of a target word in order of the source."""
    return sorted(links, key=lambda link: link[::-1])


def write(links: Iterable[Link]) -> str:
    """Return the links in Pharaoh's format, `0-0 1-2`: source-target, from 0, in target order."""
    return " ".join(f"{i}-{j}" for i, j in ordered(links))


def read(line: str, where: str) -> Set[Link]:
    """Return the links of a line in Pharaoh's format; `where` names it in errors."""
    gold = read_gold(line, where)
    if gold.possible != gold.sure:
        raise ToolkitError(f"{where}: expected links i-j, got merely possible ones, ipj")
    return gold.sure


def read_gold(line: str, where: str, base: int = 0) -> Gold:
    """Return the links of an annotated line: sure `i-j`, possible `ipj`, counted from `base`."""
    sure, possible = set[Link](), set[Link]()
    for text in line.split():
        match = re.fullmatch(r"(\d+)([-p])(\d+)", text, re.ASCII)
        if match is None:
            raise ToolkitError(f"{where}: expected links such as 0-2 or 0p2, got {text!r}")
        link = int(match[1]) - base, int(match[3]) - base
        if min(link) < 0:
            raise ToolkitError(f"{where}: positions count from {base}, but here is {text}")
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return Gold(sure, possible)


def agreement(pairs: Iterable[tuple[Set[Link], Gold]]) -> Agreement:
    """Measure the links of each pair against its gold ones; sums are taken over all pairs."""
    count = found = sure = hits_sure = hits_possible = 0
    for links, gold in pairs:
        count += 1
        found += len(links)
        sure += len(gold.sure)
        hits_sure += len(links & gold.sure)
        hits_possible += len(links & gold.possible)
    return Agreement(
        count,
        100 * (1 - _ratio(hits_sure + hits_possible, found + sure)),
        100 * _ratio(hits_possible, found),
        100 * _ratio(hits_sure, sure),
    )


def join(forward: Set[Link], backward: Set[Link], how: str) -> Set[Link]:
    """Return the links of two directions as one set: `how` is one of `JOINS`."""
    match how:
        case "intersection":
            return forward & backward
        case "union":
            return forward | backward
        case "grow-diag-final-and":
            return _grow_diag_final_and(forward, backward)
    raise ValueError(f"how: expected one of {', '.join(JOINS)}, got {how!r}")


def _grow_diag_final_and(forward: Set[Link], backward: Set[Link]) -> Set[Link]:
    """Join links as Koehn, Och and Marcu (2003) do, by the name that Moses gave it.

    From the intersection, links of the union are added that touch a link there is already, aligned
    or diagonally, and have a word without one; then those of either direction with neither word
    linked. Links are visited by source position, then target position.
    """
    union = forward | backward
    links = set(forward & backward)
    sources, targets = {i for i, _ in links}, {j for _, j in links}

    def add(link: Link) -> None:
        links.add(link)
        sources.add(link[0])
        targets.add(link[1])

    before = -1
    while before != len(links):
        before = len(links)
        for i, j in sorted(union):
            if (i, j) not in links:
                continue
            for down, right in _NEIGHBOURS:
                near = i + down, j + right
                if near in union and (near[0] not in sources or near[1] not in targets):
                    add(near)
    for direction in (forward, backward):
        for link in sorted(direction):
            if link[0] not in sources and link[1] not in targets:
                add(link)
    return links


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
