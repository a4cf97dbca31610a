from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from luong.toolkit.config import Data, Side
from luong.toolkit.errors import ToolkitError, UsageError
from luong.toolkit.text import encoded
from luong.toolkit.text.batches import Example
from luong.toolkit.text.lines import Pair
from luong.toolkit.text.vocabulary import Vocabulary
from luong.toolkit.training import preparing
from luong.toolkit.training.preparing import Prepared, prepare
from luong.toolkit.training.progress import Journal

SYMBOLS = pa.list_(pa.int32())
PAIRS = [Pair(f"{'ab' * (i % 5)}c{i}", f"A {i % 7} " + "B " * (i % 3) + "é") for i in range(100)]


@pytest.fixture
def data(tmp_path: Path) -> Data:
    write(tmp_path / "train.tsv", PAIRS)
    write(tmp_path / "dev.tsv", PAIRS[:3])
    return Data(
        f"{tmp_path}/train.tsv", f"{tmp_path}/dev.tsv", source=Side("characters"), max_length=50
    )


def write(path: Path, pairs: list[Pair], bad: bytes = b"") -> None:
    path.write_bytes("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs).encode() + bad)


def run(data: Data, folder: Path) -> tuple[Prepared, str]:
    """What was prepared, and what stood on the screen."""
    screen = io.StringIO()
    prepared = prepare(data, folder, Journal(Console(file=screen, width=1000)))
    return prepared, screen.getvalue()


def examples_of(pairs: list[Pair], prepared: Prepared) -> list[Example]:
    """The symbols of `pairs`, one pair at a time."""
    return [
        Example(*prepared.source.encode([pair.source]), *prepared.target.encode([pair.target]))
        for pair in pairs
    ]


@pytest.mark.parametrize("characters", [1, 100, 1_000_000])  # a record batch a pair, many, one
def test_examples_are_the_symbols_of_the_pairs(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, characters: int
) -> None:
    monkeypatch.setattr(encoded, "_CHARACTERS", characters)
    prepared, screen = run(data, tmp_path / "run")
    assert screen == ""
    expected = examples_of(PAIRS, prepared)
    assert list(prepared.train) == expected
    assert prepared.train[-1] == expected[-1]
    assert prepared.train[10:90:7] == expected[10:90:7]
    assert prepared.train.take(np.array([99, 0, 3])) == [expected[i] for i in (99, 0, 3)]
    with pytest.raises(IndexError):
        prepared.train[100]
    assert isinstance(prepared.train[0].source[0], int)
    assert prepared.train.lengths.tolist() == [[len(e.source), len(e.target)] for e in expected]
    assert prepared.train.lengths.dtype == np.int32
    assert prepared.dev == PAIRS[:3]
    assert prepared.source.names == Vocabulary.build(data.source, (p.source for p in PAIRS)).names
    assert prepared.target.names == Vocabulary.build(data.target, (p.target for p in PAIRS)).names


def test_two_files_and_a_table_are_the_same_corpus(data: Data, tmp_path: Path) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    source.write_text("".join(f"{pair.source}\n" for pair in PAIRS))
    target.write_text("".join(f"{pair.target}\n" for pair in PAIRS))
    both = dataclasses.replace(data, train=f"{source},{target}")
    one, other = run(data, tmp_path / "one")[0], run(both, tmp_path / "other")[0]
    assert list(one.train) == list(other.train)


def test_it_is_done_once(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = run(data, tmp_path / "run")
    os.utime(data.train, (1, 1))  # what is in it counts
    moved = dataclasses.replace(data, train=f"{tmp_path}/moved.tsv")
    Path(data.train).rename(moved.train)
    monkeypatch.setattr(Vocabulary, "build", None)
    again, screen = run(moved, tmp_path / "run")
    assert screen == ""
    assert again.digest == first.digest
    assert list(again.train) == list(first.train)
    assert again.source.names == first.source.names


def test_a_change_is_noticed(data: Data, tmp_path: Path) -> None:
    first, _ = run(data, tmp_path / "run")
    before = Path(data.train).stat()
    changed = [PAIRS[0]._replace(target="C"), *PAIRS[1:]]
    write(Path(data.train), [pair._replace(target=pair.target.replace("A", "D")) for pair in PAIRS])
    os.utime(data.train, ns=(before.st_atime_ns, before.st_mtime_ns))  # the same size and time
    second, screen = run(data, tmp_path / "run")
    assert "train.tsv, or how it is read, has changed since it was prepared" in screen
    assert "D" in second.target.names
    assert first.digest != second.digest
    write(Path(data.train), changed)
    assert len(run(data, tmp_path / "run")[0].train) == len(changed)


def test_a_setting_that_has_changed_is_noticed(data: Data, tmp_path: Path) -> None:
    digests = {
        run(setting, tmp_path / "run")[0].digest
        for setting in (
            data,
            dataclasses.replace(data, max_length=49),
            dataclasses.replace(data, target=Side("characters")),
            dataclasses.replace(data, source=Side("characters", normalization="NFD")),
        )
    }
    assert len(digests) == 4


BAD = b"a\n\xff\tb\nc\0\td\n" + b"e" * 51 + b"\tf\n"


def test_bad_lines_are_refused_before_anything_is_written(data: Data, tmp_path: Path) -> None:
    write(Path(data.train), PAIRS, BAD)
    with pytest.raises(
        ToolkitError, match=rf"^{data.train}:101: expected source.*on_bad_line skip"
    ):
        run(data, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    write(Path(data.train), PAIRS)
    write(Path(data.dev), PAIRS[:3], b"\n")
    with pytest.raises(ToolkitError, match=rf"^{data.dev}:4: expected source"):
        run(data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_bad_lines_are_skipped_and_counted_every_time(data: Data, tmp_path: Path) -> None:
    write(Path(data.train), PAIRS, BAD)
    write(Path(data.dev), PAIRS[:3], b"\n")
    lenient = dataclasses.replace(data, on_bad_line="skip")
    for _ in range(2):
        prepared, screen = run(lenient, tmp_path / "run")
        assert list(prepared.train) == examples_of(PAIRS, prepared)
        assert prepared.dev == PAIRS[:3]
        assert f"{data.train}: 4 bad lines skipped; the first: {data.train}:101: exp" in screen
        assert f"{data.dev}: 1 bad lines skipped; the first: {data.dev}:4: exp" in screen


def test_files_of_unequal_length_are_refused_even_then(data: Data, tmp_path: Path) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    source.write_text("a\nb\n")
    target.write_text("c\n")
    lenient = dataclasses.replace(data, train=f"{source},{target}", on_bad_line="skip")
    with pytest.raises(ToolkitError, match=f"^{target}:2: there is no such line"):
        run(lenient, tmp_path / "run")


def test_what_cannot_be_read_again_is_refused(data: Data, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for part in ("train", "dev"):
        with pytest.raises(ToolkitError, match=r"pipe: not a file: it is read more than once"):
            run(dataclasses.replace(data, **{part: f"{tmp_path}/pipe"}), tmp_path / "run")
    for name, reason in ((str(tmp_path), "Is a directory"), ("nowhere", "No such file")):
        for part in ("train", "dev"):
            with pytest.raises(ToolkitError, match=f"^{name}: {reason}"):
                run(dataclasses.replace(data, **{part: name}), tmp_path / "run")
    (tmp_path / "empty").touch()
    with pytest.raises(ToolkitError, match="empty: no pairs in it"):
        run(dataclasses.replace(data, train=f"{tmp_path}/empty"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_same_file_on_both_sides_is_said(data: Data, tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("a b\n")
    prepared, screen = run(dataclasses.replace(data, train=f"{path},{path}"), tmp_path / "run")
    assert f"{path} is both the source and the target" in screen
    assert prepared.source.decode(prepared.train[0].source[:-1]) == "a b"
    assert prepared.target.decode(prepared.train[0].target[:-1]) == "a b"


def test_hangul_in_syllables_or_in_letters(data: Data, tmp_path: Path) -> None:
    write(Path(data.train), [Pair("한국", "x")])
    for form, length in (("NFC", 2), ("NFD", 6)):
        side = Side("characters", normalization=form)
        prepared, _ = run(dataclasses.replace(data, source=side), tmp_path / form)
        assert prepared.train.lengths.tolist() == [[length + 1, 2]]


@pytest.mark.parametrize("name", preparing.FILES)
@pytest.mark.parametrize("change", ["empty", "half", "bit", "gone"])
def test_what_is_damaged_is_named_and_done_again(
    data: Data, tmp_path: Path, name: str, change: str
) -> None:
    first, _ = run(data, tmp_path)
    expected = list(first.train)  # before: the file is mapped
    path = tmp_path / "data" / name
    whole = path.read_bytes()
    middle = len(whole) // 2
    if change == "gone":
        path.unlink()
    else:
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        path.write_bytes({"empty": b"", "half": whole[:middle], "bit": flipped}[change])
    again, screen = run(data, tmp_path)
    assert list(again.train) == expected
    assert again.digest == first.digest
    assert path.read_bytes() == whole
    if (name, change) == ("prepared.json", "gone"):
        assert screen == ""
    else:
        named = path.parent if name == "prepared.json" else path  # its hashes may be what is wrong
        assert re.search(rf"^{re.escape(str(named))}.*: .*: preparing it again$|tsv, or", screen)
    assert run(data, tmp_path)[1] == ""


def without_hashes(folder: Path, **changes: object) -> None:
    """Make the folder what older versions left."""
    content = json.loads((folder / "prepared.json").read_text())
    del content["hashes"]
    (folder / "prepared.json").write_text(json.dumps(content | changes))


def test_a_folder_of_an_older_version_is_taken(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = run(data, tmp_path)
    without_hashes(tmp_path / "data")
    monkeypatch.setattr(Vocabulary, "build", None)
    again, screen = run(data, tmp_path)
    assert (list(again.train), screen) == (list(first.train), "")


@pytest.mark.parametrize(
    "changes",
    [
        {"digest": 3},
        {"skipped": None},
        {"skipped": [1]},
        {"skipped": ["1", "a"]},
        {"hashes": []},
        {"hashes": {"train.arrow": "ab"}},
        {"hashes": dict.fromkeys(preparing.FILES[:-1], 3)},
    ],
)
def test_a_record_of_other_fields_is_named(
    data: Data, tmp_path: Path, changes: dict[str, object]
) -> None:
    run(data, tmp_path)
    without_hashes(tmp_path / "data", **changes)
    assert ": damaged" in run(data, tmp_path)[1]
    path = tmp_path / "data" / "prepared.json"
    for content in ("[]", "3", "null", "[" * 100_000, '{"digest": NaN}'):
        path.write_text(content)
        assert f"{path}: damaged (" in run(data, tmp_path)[1]


def test_a_file_in_the_place_of_the_folder(data: Data, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "data").touch()
    with pytest.raises(ToolkitError, match="data: File exists"):
        run(data, tmp_path / "other")


def test_a_file_that_changes_while_it_is_read_is_noticed(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(*arguments: object) -> None:
        whole(*arguments)
        write(Path(data.train), PAIRS[:50])

    whole = encoded.write
    monkeypatch.setattr(preparing, "write", encode)
    with pytest.raises(ToolkitError, match=r"train\.tsv: changed while it was read"):
        run(data, tmp_path / "run")
    assert not (tmp_path / "run" / "data" / "prepared.json").exists()


PREPARE = """
import sys, time
from pathlib import Path
from rich.console import Console
from luong.toolkit.config import Data, Side
from luong.toolkit.errors import ToolkitError
from luong.toolkit.text import encoded
from luong.toolkit.training import preparing
from luong.toolkit.training.progress import Journal
train, dev, out, *stop = sys.argv[1:]
if stop == ["slow"]:
    chunks = encoded._chunks
    encoded._CHARACTERS = 100
    def slow(pairs):
        for chunk in chunks(pairs):
            yield chunk
            time.sleep(60)
    encoded._chunks = slow
data = Data(train, dev, source=Side("characters"), max_length=50)
try:
    print(preparing.prepare(data, Path(out), Journal(Console(stderr=True))).digest)
except ToolkitError as error:
    sys.exit(f"luong: {error}")
"""


def start(data: Data, out: Path, *arguments: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PREPARE, data.train, data.dev, str(out), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )


def test_a_preparation_that_was_killed_begins_again(data: Data, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "data"
    with start(data, tmp_path / "run", "slow") as process:
        while not (folder / "train.arrow.partial").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
    assert not (folder / "train.arrow").exists()
    prepared, _ = run(data, tmp_path / "run")
    assert list(prepared.train) == examples_of(PAIRS, prepared)
    assert not (folder / "train.arrow.partial").exists()


def test_several_processes_at_once(data: Data, tmp_path: Path) -> None:
    processes = [start(data, tmp_path / "run") for _ in range(2)]
    ended = [process.communicate() for process in processes]
    assert {process.returncode for process in processes} == {0}, ended
    digest = run(data, tmp_path / "run")[0].digest
    assert [out.strip() for out, _ in ended] == [digest] * 2


def test_a_disk_that_is_full_is_said(data: Data, tmp_path: Path) -> None:
    write(Path(data.train), PAIRS * 100)
    limit = (20_000, 20_000)  # bytes of a file: more than the vocabularies, less than the symbols
    process = start(
        data,
        tmp_path / "run",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )
    _, error = process.communicate()
    assert process.returncode == 1
    assert error == f"luong: {tmp_path}/run/data/train.arrow: not written: File too large\n"
    names = {path.name for path in (tmp_path / "run" / "data").iterdir()}
    assert names == {"lock", "source.json", "target.json"}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"max_length": 0}, "data.max_length: expected at least 1, got 0"),
        ({"source": Side(vocabulary_size=4)}, "data.source.vocabulary_size: expected at least 5"),
        ({"target": Side(min_frequency=0)}, "data.target.min_frequency: expected at least 1"),
        ({"target": Side("unigram", min_frequency=2)}, "data.target.min_frequency: expected 1"),
    ],
)
def test_settings_that_make_no_sense(setting: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        Data("train", "dev", **setting)
