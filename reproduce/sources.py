"""The public data behind docs/results.md: where a reader finds them, and the corpora made of them.

Files are found anywhere below the folder given, by name and SHA-256 (SHA256SUMS), so that a clone
of the repository named, a folder of downloads and a copy of either all serve.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

CHECKSUMS = Path(__file__).parent / "SHA256SUMS"
WHERE = {
    "cmudict": "https://github.com/HaisongDing/CNTK, commit 9c758ea, "
    "Examples/SequenceToSequence/CMUDict/Data",
    "sigmorphon2021": "https://github.com/sigmorphon/2021-task1, commit 821bcde",
    "greek-english": "pip download --no-deps bible_alignments==0.4.2",
    "nmt-tips": "https://github.com/neubig/nmt-tips, commit c81d8b4",
}
DEV_WORDS = 2670  # of the CMU dictionary: as many as the literature takes


def find(source: str, folder: Path) -> dict[str, Path]:
    """The files of a source below `folder`, by their names; exits where one is missing."""
    found = {}
    for line in CHECKSUMS.read_text(encoding="utf-8").splitlines():
        checksum, _, name = line.partition("  ")
        kind, _, name = name.partition("/")
        if kind == source:
            found[name] = _find(source, folder, name, checksum)
    return found


def _find(source: str, folder: Path, name: str, checksum: str) -> Path:
    candidates = sorted(folder.rglob(name))
    for path in candidates:
        if hashlib.sha256(path.read_bytes()).hexdigest() == checksum:
            return path
    problem = f"{candidates[0]} has another SHA-256" if candidates else f"{folder}: no {name} in it"
    raise SystemExit(f"{problem}; it is from {WHERE[source]}")


def cmudict(files: dict[str, Path], out: Path) -> None:
    """The CMU dictionary 0.7b. Which words of its training part become dev goes by a hash."""
    entries = {
        part: [
            (word.lower(), " ".join(phonemes.split()))
            for word, phonemes in (
                line.split(maxsplit=1) for line in _lines(files[f"cmudict-0.7b.{part}"])
            )
        ]
        for part in ("train", "test")
    }
    words = {word for word, _ in entries["train"]}
    dev = {*sorted(words, key=lambda word: hashlib.sha256(word.encode()).digest())[:DEV_WORDS]}
    _write(out / "test.tsv", entries["test"])
    _write(out / "train.tsv", (entry for entry in entries["train"] if entry[0] not in dev))
    _write(out / "dev.tsv", (entry for entry in entries["train"] if entry[0] in dev))


def greek_english(files: dict[str, Path], out: Path) -> None:
    """Verses of the New Testament whose words are aligned by hand.

    Greek lemmas, English in lower case without punctuation: a line of grc.txt and en.txt each, and
    the links of gold.txt, from 0. The corpora learnt from are all of it, one for each direction;
    every twentieth verse shows how that goes.
    """
    greek, english = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    place = dict[str, tuple[str, int]]()  # of a word's id: its verse, its position
    links = defaultdict[str, set[tuple[int, int]]](set)
    with zipfile.ZipFile(files["bible_alignments-0.4.2-py3-none-any.whl"]) as wheel:
        for row in _table(wheel, "data/sources/SBLGNT.tsv"):
            verse = row["id"][1:9]
            place[f"source {row['id']}"] = verse, len(greek[verse])
            greek[verse].append(row["lemma"])
        for row in _table(wheel, "data/eng/targets/BSB/nt_BSB.tsv"):
            if not row["exclude"]:
                verse = row["source_verse"]
                place[f"target {row['id']}"] = verse, len(english[verse])
                english[verse].append(row["text"].lower())
        with wheel.open("data/eng/alignments/BSB/SBLGNT-BSB-manual.json") as file:
            records = json.load(file)["records"]
    for record in records:
        for source in record["source"]:
            for target in record["target"]:
                verse, i = place.get(f"source {source}", ("", 0))
                other, j = place.get(f"target {target}", (" ", 0))
                if verse == other:
                    links[verse].add((i, j))
    verses = [verse for verse in greek if verse in english and links[verse]]
    sides = {"grc": greek, "en": english}
    for name, side in sides.items():
        _write(out / f"{name}.txt", ((" ".join(side[verse]),) for verse in verses))
    gold = ((" ".join(f"{i}-{j}" for i, j in sorted(links[verse])),) for verse in verses)
    _write(out / "gold.txt", gold)
    for one, other in (("grc", "en"), ("en", "grc")):
        pairs = [tuple(" ".join(sides[name][verse]) for name in (one, other)) for verse in verses]
        _write(out / f"{one}-{other}.tsv", pairs)
        _write(out / f"{one}-{other}.dev.tsv", pairs[::20])


def _table(wheel: zipfile.ZipFile, name: str) -> Iterator[dict[str, str]]:
    with wheel.open(name) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        yield from csv.DictReader(text, delimiter="\t", quoting=csv.QUOTE_NONE)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def _write(path: Path, rows: Iterable[tuple[str, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
