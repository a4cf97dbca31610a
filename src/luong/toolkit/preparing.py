"""A corpus made ready for training: vocabularies, and symbols on disk, in bounded memory."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from itertools import accumulate, count
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np
import pyarrow as pa
from filelock import FileLock
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from luong.seq2seq.model import END
from luong.toolkit import corpus, files
from luong.toolkit.batches import Example
from luong.toolkit.config import Data
from luong.toolkit.corpus import Pair
from luong.toolkit.errors import ToolkitError
from luong.toolkit.files import whole
from luong.toolkit.logs import Journal
from luong.toolkit.plain import parse_json
from luong.toolkit.reading import Problem
from luong.toolkit.vocabulary import Vocabulary

FILES = ("source.json", "target.json", "train.arrow", "prepared.json")  # of the folder
_FORMAT = 1  # of it
_MOST = 1 << 20  # bytes of prepared.json
_NO_MATTER = ("train", "dev", "test")  # settings: files count by what is in them
_CHARACTERS = 250_000  # encoded at a time
_SYMBOLS = pa.list_(pa.int32())
_SCHEMA = pa.schema([("source", _SYMBOLS), ("target", _SYMBOLS)])


class _Lists(NamedTuple):
    """A column of lists, in the memory of an Arrow file."""

    ends: NDArray[np.int32]  # one more than there are lists: the start of the first comes first
    values: NDArray[np.int32]

    @classmethod
    def of(cls, column: pa.ListArray, size: int) -> _Lists:
        """The lists of a column: symbols below `size`, END last. Raises ValueError."""
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
        i = range(len(self))[index]  # counts negative ones from the end, and raises IndexError
        batch = bisect_right(self._starts, i) - 1
        row = i - self._starts[batch]
        source, target = (side[batch].row(row) for side in self._sides)
        return Example(source, target)

    def take(self, indices: Iterable[int]) -> list[Example]:
        """The examples at `indices`, in their order."""
        return [self[int(i)] for i in indices]


class Prepared(NamedTuple):
    """What training needs of the data."""

    source: Vocabulary
    target: Vocabulary
    train: Examples
    dev: list[Pair]
    digest: str  # of the training corpus and of all settings that say how it is read


@dataclass
class Skipped:
    """Counts bad lines, and keeps the first."""

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

    def __init__(self, data: Data, bar: Progress) -> None:
        self.data, self.bar = data, bar
        self.total: int | None = None  # pairs: known once they have been read
        self.skipped = Skipped()  # in the last reading

    def read(self, task: str) -> Iterator[Pair]:
        self.skipped = Skipped()
        pairs = corpus.pairs(self.data.train, self.data.max_length, _rule(self.data, self.skipped))
        number = count()
        for pair in self.bar.track(pairs, self.total, description=task):
            next(number)
            yield pair
        self.total = next(number)


class _Record(NamedTuple):
    """What prepared.json tells."""

    digest: str  # of what the folder was prepared from
    skipped: tuple[int, str]
    hashes: dict[str, str]  # of the other files, by name; older versions kept none


def prepare(
    data: Data, out: Path, journal: Journal, known: tuple[Vocabulary, Vocabulary] | None = None
) -> Prepared:
    """The data of a run, encoded once into the folder `out / "data"` and found there again.

    Symbols are those of the training corpus, or, where it is given, of the vocabularies `known`.
    The training corpus is read as a stream: once for each vocabulary and once to encode it. A
    corpus or a setting that has changed since, and a file in the folder that was damaged, are
    noticed, said, and prepared again. A bad corpus raises `ToolkitError` before anything is
    written. Several processes may call it at once.
    """
    folder, skipped = out / "data", Skipped()
    dev = list(corpus.pairs(_again(data.dev), data.max_length, _rule(data, skipped)))
    skipped.report(data.dev, journal)
    digest = _digest(data, known)
    try:
        try:
            prepared, skipped = _load(folder, digest, data, dev)
        except ToolkitError as reason:
            if (folder / "prepared.json").exists():
                journal.say(f"{reason}: preparing it again")
            _write(data, folder, digest, journal, known)
            prepared, skipped = _load(folder, digest, data, dev)
    except OSError as error:
        raise ToolkitError(f"{folder}: {error.strerror or error}") from error
    skipped.report(data.train, journal)
    return prepared


def _load(folder: Path, digest: str, data: Data, dev: list[Pair]) -> tuple[Prepared, Skipped]:
    """What was prepared from `digest`. Raises `ToolkitError` where it was not, or is not whole."""
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
        match parse_json(files.read(path, _MOST)):
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
    folder: Path,
    digest: str,
    journal: Journal,
    known: tuple[Vocabulary, Vocabulary] | None,
) -> None:
    """Everything of `Prepared` but the dev pairs; `prepared.json` comes last and vouches for it."""
    _remark(data, journal)
    with _progress(journal.console) as bar:
        reader = _Reader(data, bar)
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
                with whole(folder / name) as path:
                    vocabulary.save(path)
            with whole(folder / "train.arrow") as path:
                _encode(reader.read("encoding"), source, target, path)
            if _digest(data, known) != digest:
                raise ToolkitError(f"{data.train}: changed while it was read; start again")
            content = {
                "digest": digest,
                "skipped": astuple(reader.skipped),
                "hashes": {name: files.digest(folder / name) for name in FILES[:-1]},
            }
            with whole(folder / "prepared.json") as path:
                path.write_text(json.dumps(content), encoding="utf-8")


def _encode(pairs: Iterator[Pair], source: Vocabulary, target: Vocabulary, path: Path) -> None:
    """The symbols of `pairs` in an Arrow file, a record batch of two columns at a time."""
    with path.open("wb") as file, pa.ipc.new_file(file, _SCHEMA) as writer:
        for chunk in _chunks(pairs):
            sides = (
                source.encode([pair.source for pair in chunk]),
                target.encode([pair.target for pair in chunk]),
            )
            columns = [pa.array(side, _SYMBOLS) for side in sides]
            writer.write_batch(pa.record_batch(columns, schema=_SCHEMA))


def _chunks(pairs: Iterator[Pair]) -> Iterator[list[Pair]]:
    """As many pairs at a time as a bounded memory holds in symbols."""
    chunk, characters = list[Pair](), 0
    for pair in pairs:
        chunk.append(pair)
        characters += len(pair.source) + len(pair.target)
        if characters >= _CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _digest(data: Data, known: tuple[Vocabulary, Vocabulary] | None) -> str:
    """Of all that the prepared data depend on."""
    settings = {name: value for name, value in asdict(data).items() if name not in _NO_MATTER}
    contents = [files.digest(path) for path in corpus.files(_again(data.train))]
    settings |= {"format": _FORMAT, "files": contents}
    if known:
        settings["known"] = [vocabulary.names for vocabulary in known]
    if data.train.startswith(corpus.CMUDICT):  # its parts are of the same files
        settings["train"] = data.train
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _again(name: str) -> str:
    """`name`, if that corpus can be read more than once."""
    for path in corpus.files(name):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ToolkitError(f"{path}: not a file: it is read more than once, so save it to one")
    return name


def _rule(data: Data, skipped: Skipped) -> Callable[[list[Problem]], None]:
    return skipped if data.on_bad_line == "skip" else _refuse


def _refuse(problems: list[Problem]) -> None:
    raise ToolkitError(
        f"{problems[0]} (luong check lists all bad lines; --data.on_bad_line skip leaves them out)"
    )


def _remark(data: Data, journal: Journal) -> None:
    match corpus.files(data.train):
        case [source, target] if source.exists() and target.exists() and source.samefile(target):
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
