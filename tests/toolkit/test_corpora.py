"""The names of corpora: what they mean, and where their files are."""

from __future__ import annotations

from pathlib import Path

import pytest

from luong.toolkit.corpora import Dictionary, Parallel, Table, located, parse
from luong.toolkit.errors import ToolkitError


def test_the_three_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c,d").touch()
    assert parse("a") == Table(Path("a"))
    assert parse("a,b") == Parallel(Path("a"), Path("b"))
    assert parse("c,d") == Table(Path("c,d"))  # a file that is there
    assert parse("cmudict:dev") == Dictionary("dev")
    for name in ("a", "a,b", "c,d", "cmudict:dev"):
        assert str(parse(name)) == name


@pytest.mark.parametrize("name", ["a,b,c", "a,", ",b", ","])
def test_names_with_commas_that_mean_nothing(name: str) -> None:
    expected = rf"^{name}: expected FILE or SOURCE,TARGET, and no comma in a name$"
    with pytest.raises(ToolkitError, match=expected):
        parse(name)
    assert located(name) == name


def test_an_unknown_part_of_the_dictionary() -> None:
    expected = "^cmudict:all: expected cmudict:train, cmudict:dev or cmudict:test$"
    with pytest.raises(ToolkitError, match=expected):
        parse("cmudict:all")


def test_files_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert located("a") == f"{tmp_path}/a"
    assert located("a,b") == f"{tmp_path}/a,{tmp_path}/b"
    assert located("/x/a,b") == f"/x/a,{tmp_path}/b"
    assert located("cmudict:train") == "cmudict:train"
