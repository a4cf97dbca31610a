"""luong check"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from luong.toolkit.choices import COUNT, SHOWN
from luong.toolkit.command import options, terminal

if TYPE_CHECKING:
    from luong.toolkit.text.report import Overlap, Report


def run(argv: Sequence[str]) -> None:
    """luong check CORPUS ... | RECIPE [--max-length N] [--limit N] [--json]"""
    arguments = _parser().parse(argv)

    from luong.toolkit.text.report import check, overlaps

    reports, hashes = [], []
    for name, longest in _corpora(arguments.corpus):
        report, found = check(name, arguments.max_length or longest, arguments.limit)
        reports.append(report)
        hashes.append((name, found))
        if not arguments.json:
            print(*_lines(report, arguments.limit), sep="\n", flush=True)
    shared = overlaps(hashes)
    if arguments.json:
        print(json.dumps(_tree(reports, shared), ensure_ascii=False))
    else:
        print(*map(_overlap, shared), sep="\n", end="\n" if shared else "")
    if any(report.bad_lines or report.error for report in reports):
        raise SystemExit(1)


def _parser() -> terminal.Parser:
    parser = terminal.Parser(
        "check",
        "Everything wrong with a corpus, by file and line, and a summary of what is in it. "
        "The exit status is 1 if a line is bad or a file cannot be read.",
    )
    parser.add_argument(
        "corpus",
        nargs="+",
        help="FILE of lines source<TAB>target; SOURCE,TARGET: two files whose lines belong "
        "together; or a recipe, for its train, dev and test. A file may be compressed by gzip, "
        "or a pipe",
    )
    options.add_number(
        parser.add_argument,
        "--max-length",
        COUNT,
        "longest side of a pair, in characters",
        unset=5000,
    )
    options.add_number(
        parser.add_argument, "--limit", SHOWN, "most bad lines shown of a corpus", default=20
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _corpora(names: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield each corpus and the greatest length of a line; a recipe stands for its corpora."""
    from luong.toolkit.config import RECIPES, Config, Data, recipe_path

    for name in names:
        packaged = (RECIPES / f"{name}.yaml").is_file() and not Path(name).exists()
        if packaged or Path(name).suffix in (".yaml", ".yml"):
            data = Config.load(recipe_path(name)).data
            parts = dict.fromkeys(filter(None, (data.train, data.dev, data.test)))
            yield from ((part, data.max_length) for part in parts)
        else:
            yield name, Data.max_length


def _lines(report: Report, limit: int) -> Iterator[str]:
    from luong.toolkit.text.report import MENTIONS

    yield from map(str, report.problems)
    if report.bad_lines > limit:
        yield f"{report.name}: {report.bad_lines - limit:,} more bad lines (--limit shows more)"
    if report.error:
        yield report.error
    yield (
        f"{report.name}: {report.pairs:,} pairs, {report.bad_lines:,} bad lines, "
        f"{report.repeated:,} repeated pairs, {report.equal:,} with equal sides"
    )
    if report.lengths:
        yield f"{'':20}{'distinct':>12}{'median':>10}{'95 %':>10}{'longest':>10}"
    for side, by_unit in report.lengths.items():
        for unit, (median, percentile, longest, distinct) in by_unit.items():
            numbers = f"{distinct:>12,}{median:>10,}{percentile:>10,}{longest:>10,}"
            yield f"  {side + ' ' + unit:18}{numbers}"
    for side, mentions in report.mentions.items():
        for kind, (lines, first) in mentions.items():
            what = f"have {MENTIONS[kind]}; the first is line {first:,}"
            yield f"{report.name}: {side}s of {lines:,} pairs {what}"


def _overlap(overlap: Overlap) -> str:
    return (
        f"{overlap.name}: shares {overlap.pairs:,} distinct pairs and {overlap.sources:,} distinct "
        f"sources with {overlap.other}"
    )


def _tree(reports: Sequence[Report], shared: Sequence[Overlap]) -> object:
    corpora = [
        {
            **asdict(report),
            "problems": [problem._asdict() for problem in report.problems],
            "lengths": {
                side: {unit: lengths._asdict() for unit, lengths in by_unit.items()}
                for side, by_unit in report.lengths.items()
            },
            "mentions": {
                side: {kind: mention._asdict() for kind, mention in mentions.items()}
                for side, mentions in report.mentions.items()
            },
        }
        for report in reports
    ]
    return {"corpora": corpora, "overlaps": [overlap._asdict() for overlap in shared]}
