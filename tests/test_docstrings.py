"""Every public name documents itself: all arguments, what comes back, and an example that runs."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import luong
from luong import seq2seq


def public() -> Iterator[tuple[str, Any]]:
    """The public functions and classes, with the names that users call them by."""
    for name in luong.__all__:
        value = getattr(luong, name)
        if inspect.ismodule(value):
            for inner, function in vars(value).items():
                own = inspect.isfunction(function) and function.__module__ == value.__name__
                if own and not inner.startswith("_"):
                    yield f"{value.__name__}.{inner}", function
        else:
            yield f"luong.{name}", value
    for name in (
        "Bridge",
        "Decoder",
        "Decoding",
        "Encoder",
        "Sampling",
        "Seq2Seq",
        "Settings",
        "build",
    ):
        yield f"luong.seq2seq.{name}", getattr(seq2seq, name)


PUBLIC = dict(public())
FUNCTIONS = [name for name, value in PUBLIC.items() if inspect.isfunction(value)]
CLASSES = [name for name, value in PUBLIC.items() if inspect.isclass(value)]
WITHOUT_EXAMPLE = {
    "luong.Attended",
    "luong.Memory",
    "luong.Score",
    "luong.Window",
    "luong.AttendedWindow",
    "luong.load",  # needs a trained model
    "luong.plot_alignment",
}
_HEADINGS = "Args|Attributes|Returns|Raises|Example|Source"


def sections(name: str) -> dict[str, str]:
    """The sections of a docstring by their headings; the summary is under ""."""
    text = inspect.getdoc(PUBLIC[name])
    assert text, name
    parts = re.split(rf"^({_HEADINGS}):\n", text, flags=re.MULTILINE)
    return {"": parts[0]} | dict(zip(parts[1::2], parts[2::2], strict=True))


def listed(section: str) -> list[str]:
    """The names that a section of a docstring begins its entries with."""
    return re.findall(r"^    (\w+): ", section, re.MULTILINE)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_documents_its_arguments_and_result(name: str) -> None:
    found = sections(name)
    assert listed(found["Args"]) == list(inspect.signature(PUBLIC[name]).parameters)
    assert found["Returns"].strip()


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_documents_what_it_is_made_of(name: str) -> None:
    own, found = PUBLIC[name], sections(name)
    if issubclass(own, tuple):  # a NamedTuple: every field
        assert listed(found["Attributes"]) == list(own._fields)
        return
    arguments = list(inspect.signature(own.__init__).parameters) if "__init__" in vars(own) else []
    assert listed(found.get("Args", "")) == [each for each in arguments if each != "self"]
    for parameter in ("weight", "v", "gain"):
        if re.search(rf"self\.{parameter} = ", inspect.getsource(own)):
            assert parameter in listed(found["Attributes"])


@pytest.mark.parametrize("name", CLASSES)
def test_the_methods_of_a_class_are_documented(name: str) -> None:
    for inner, method in vars(PUBLIC[name]).items():
        if inspect.isfunction(method) and not inner.startswith("_") and inner != "extra_repr":
            assert inspect.getdoc(getattr(PUBLIC[name], inner)), inner  # a base class may say it


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_first_word_is_an_imperative(name: str) -> None:
    assert sections(name)[""].split()[0] in ("Return", "Attend", "Load", "Draw")


@pytest.mark.parametrize("name", FUNCTIONS + CLASSES)
def test_the_example_of_a_docstring_runs(name: str) -> None:
    if name in WITHOUT_EXAMPLE or name.startswith("luong.reference."):
        return
    names = {"luong": luong, "torch": torch}
    (example,) = doctest.DocTestFinder(recurse=False).find(PUBLIC[name], name, globs=names)
    assert example.examples
    report: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example, out=report.append)
    assert not report, "".join(report)
