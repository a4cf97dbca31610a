"""Preparation of a run's data: vocabularies, and encoded examples on disk, done once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from luong.toolkit import files
from luong.toolkit.config import Data
from luong.toolkit.corpora import Corpus, Dictionary, Parallel, parse
from luong.toolkit.errors import ToolkitError
from luong.toolkit.files import replacing
from luong.toolkit.plain import parse_json
from luong.toolkit.reading import Problem
from luong.toolkit.text import corpus
from luong.toolkit.text.encoded import Examples, write
from luong.toolkit.text.lines import Pair
from luong.toolkit.text.vocabulary import Vocabulary
from luong.toolkit.training.progress import Journal

FILES = ("source.json", "target.json", "train.arrow", "prepared.json")  # of the folder
_FOLDER_FORMAT = 1  # its version
_MAX_RECORD = 1 << 20  # bytes of prepared.json
_FILE_SETTINGS = ("train", "dev", "test")  # names: what is in the files counts instead


class Prepared(NamedTuple):
    """The data that training needs."""

    source: Vocabulary
    target: Vocabulary
    train: Examples
    dev: list[Pair]
    digest: str  # of the training corpus and of all settings that say how it is read


@dataclass
class Skipped:
    """A counter of bad lines, which keeps the first of them."""

    count: int = 0
    first: str = ""

    def __call__(self, problems: list[Problem]) -> None:
        self.count += 1
        self.first = self.first or str(problems[0])

    def report(self, name: str, journal: Journal) -> None:
        if self.count:
            journal.say(f"{name}: {self.count:,} bad lines skipped; the first: {self.first}")


class _Reader:
    """The training corpus as a stream, as often as it is wanted, with a progress bar."""

    def __init__(self, train: Corpus, data: Data, bar: Progress) -> None:
        self.train, self.data, self.bar = train, data, bar
        self.total: int | None = None  # pairs: known once they have been read
        self.skipped = Skipped()  # in the last reading

    def read(self, task: str) -> Iterator[Pair]:
        self.skipped = Skipped()
        pairs = corpus.pairs(self.train, self.data.max_length, _rule(self.data, self.skipped))
        number = count()
        for pair in self.bar.track(pairs, self.total, description=task):
            next(number)
            yield pair
        self.total = next(number)


class _Record(NamedTuple):
    """The content of prepared.json."""

    digest: str  # of what the folder was prepared from
    skipped: tuple[int, str]
    hashes: dict[str, str]  # of the other files, by name; older versions kept none


def prepare(
    data: Data, out: Path, journal: Journal, known: tuple[Vocabulary, Vocabulary] | None = None
) -> Prepared:
    """Return the data of a run, encoded once into the folder `out / "data"` and found there again.

    Symbols are those of the training corpus, or, where it is given, of the vocabularies `known`.
    The training corpus is read as a stream: once for each vocabulary and once to encode it. A
    corpus or a setting that has changed since, and a file in the folder that was damaged, are
    noticed, said, and prepared again. A bad corpus raises `ToolkitError` before anything is
    written. Several processes may call it at once.
    """
    folder, skipped = out / "data", Skipped()
    train, dev_corpus = parse(data.train), parse(data.dev)
    _require_files(dev_corpus)
    dev = list(corpus.pairs(dev_corpus, data.max_length, _rule(data, skipped)))
    skipped.report(data.dev, journal)
    digest = _digest(data, train, known)
    try:
        try:
            prepared, skipped = _load(folder, digest, data, dev)
        except ToolkitError as reason:
            if (folder / "prepared.json").exists():
                journal.say(f"{reason}: preparing it again")
            _write(data, train, folder, digest, journal, known)
            prepared, skipped = _load(folder, digest, data, dev)
    except OSError as error:
        raise ToolkitError(f"{folder}: {error.strerror or error}") from error
    skipped.report(data.train, journal)
    return prepared


def _load(folder: Path, digest: str, data: Data, dev: list[Pair]) -> tuple[Prepared, Skipped]:
    """Return what was prepared from `digest`. Raise `ToolkitError` where it was not, or is not
    whole.
    """
    record = _record(folder / "prepared.json")
    if record.digest != digest:
        raise ToolkitError(f"{data.train}, or how it is read, has changed since it was prepared")
    for part, expected in record.hashes.items():
        if files.digest(folder / part) != expected:
            raise ToolkitError(f"{folder / part}: damaged: it has changed since it was prepared")
    source = Vocabulary.load(folder / "source.json", data.source)
    target = Vocabulary.load(folder / "target.json", data.target)
    train = Examples(folder / "train.arrow", (len(source), len(target)))
    return Prepared(source, target, train, dev, digest), Skipped(*record.skipped)


def _record(path: Path) -> _Record:
    try:
        match parse_json(files.read(path, _MAX_RECORD)):
            case {"digest": str(digest), "skipped": [int(count), str(first)], **rest}:
                return _Record(digest, (count, first), _hashes(rest.get("hashes")))
        raise ValueError("its fields are not those of prepared data")
    except ValueError as error:
        raise ToolkitError(f"{path}: damaged ({error})") from error


def _hashes(told: object) -> dict[str, str]:
    if told is None:  # in an older version
        return {}
    if isinstance(told, dict) and told.keys() == set(FILES[:-1]):
        return {name: str(value) for name, value in told.items()}
    raise ValueError("its hashes are not those of prepared data")


def _write(
    data: Data,
    train: Corpus,
    folder: Path,
    digest: str,
    journal: Journal,
    known: tuple[Vocabulary, Vocabulary] | None,
) -> None:
    """Write all of `Prepared` except the dev pairs; `prepared.json` comes last and vouches for
    it.
    """
    _say_where_one_file_is_both(train, journal)
    with _progress(journal.console) as bar:
        reader = _Reader(train, data, bar)
        source, target = known or (
            Vocabulary.build(data.source, (p.source for p in reader.read("source symbols"))),
            Vocabulary.build(data.target, (p.target for p in reader.read("target symbols"))),
        )
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "lock"):
            with suppress(ToolkitError):
                _load(folder, digest, data, [])  # another process was faster
                return
            (folder / "prepared.json").unlink(missing_ok=True)
            for name, vocabulary in (("source.json", source), ("target.json", target)):
                with replacing(folder / name) as path:
                    vocabulary.save(path)
            with replacing(folder / "train.arrow") as path:
                write(reader.read("encoding"), source, target, path)
            if _digest(data, train, known) != digest:
                raise ToolkitError(f"{data.train}: changed while it was read; start again")
            content = {
                "digest": digest,
                "skipped": astuple(reader.skipped),
                "hashes": {name: files.digest(folder / name) for name in FILES[:-1]},
            }
            with replacing(folder / "prepared.json") as path:
                path.write_text(json.dumps(content), encoding="utf-8")


def _digest(data: Data, train: Corpus, known: tuple[Vocabulary, Vocabulary] | None) -> str:
    """Return a hash of everything that the prepared data depend on."""
    settings = {name: value for name, value in asdict(data).items() if name not in _FILE_SETTINGS}
    _require_files(train)
    contents = [files.digest(path) for path in corpus.files(train)]
    settings |= {"format": _FOLDER_FORMAT, "files": contents}
    if known:
        settings["known"] = [vocabulary.names for vocabulary in known]
    if isinstance(train, Dictionary):  # its parts are of the same files
        settings["train"] = data.train
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _require_files(read_again: Corpus) -> None:
    """Refuse a corpus that cannot be read more than once."""
    for path in corpus.files(read_again):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ToolkitError(f"{path}: not a file: it is read more than once, so save it to one")


def _rule(data: Data, skipped: Skipped) -> Callable[[list[Problem]], None]:
    return skipped if data.on_bad_line == "skip" else _refuse


def _refuse(problems: list[Problem]) -> None:
    raise ToolkitError(
        f"{problems[0]} (luong check lists all bad lines; --data.on_bad_line skip leaves them out)"
    )


def _say_where_one_file_is_both(train: Corpus, journal: Journal) -> None:
    match train:
        case Parallel(source, target) if (
            source.exists() and target.exists() and source.samefile(target)
        ):
            journal.say(f"{source} is both the source and the target")


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
