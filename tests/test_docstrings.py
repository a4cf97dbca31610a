"""Every public name documents itself: all arguments, what comes back, and an example that runs."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import luong


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public functions, with the names that users call them by."""
    for module in (luong.columns, luong.reference):
        for name, value in vars(module).items():
            own = inspect.isfunction(value) and value.__module__ == module.__name__
            if own and not name.startswith("_"):
                yield f"{module.__name__}.{name}", value
    for name in luong.__all__:
        value = getattr(luong, name)
        if inspect.isfunction(value) and name.endswith("_score"):
            yield f"luong.{name}", value


PUBLIC = dict(public())
CLASSES = {
    f"luong.{each.__name__}": each
    for each in (luong.LocalMonotonic, luong.LocalPredictive, luong.Causal)
}


def sections(text: str) -> dict[str, str]:
    """The sections of a docstring by their headings; the summary is under ""."""
    parts = re.split(
        r"^(Args|Attributes|Returns|Raises|Example|Source):\n", text, flags=re.MULTILINE
    )
    return {"": parts[0]} | dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("name", PUBLIC)
def test_a_function_documents_its_arguments_and_result(name: str) -> None:
    function = PUBLIC[name]
    text = inspect.getdoc(function)
    assert text
    found = sections(text)
    documented = re.findall(r"^    (\w+): ", found["Args"], re.MULTILINE)
    assert documented == list(inspect.signature(function).parameters)
    assert found["Returns"].strip()


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_documents_what_it_is_made_of(name: str) -> None:
    found = sections(inspect.getdoc(CLASSES[name]) or "")
    documented = re.findall(r"^    (\w+): ", found.get("Args", ""), re.MULTILINE)
    wanted = (
        inspect.signature(CLASSES[name].__init__).parameters
        if "__init__" in vars(CLASSES[name])
        else {}
    )
    assert documented == [each for each in wanted if each != "self"]


@pytest.mark.parametrize("name", PUBLIC)
def test_the_first_sentence_is_an_imperative(name: str) -> None:
    first = (inspect.getdoc(PUBLIC[name]) or "").split()[0]
    assert first == "Return", first


@pytest.mark.parametrize("name", [name for name in PUBLIC | CLASSES if "reference" not in name])
def test_the_example_of_a_docstring_runs(name: str) -> None:
    names = {"luong": luong, "torch": torch}
    documented = (PUBLIC | CLASSES)[name]
    (example,) = doctest.DocTestFinder(recurse=False).find(documented, name, globs=names)
    assert example.examples
    report: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example, out=report.append)
    assert not report, "".join(report)
