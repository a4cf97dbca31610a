"""Dataclasses of scalars, built from text: the values of a file or of flags."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from types import NoneType
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args, get_origin, get_type_hints

from luong.toolkit.errors import UsageError
from luong.toolkit.plain import Scalar, short

T = TypeVar("T")
_WHOLE = re.compile(r"[-+]?[0-9]{1,30}(_[0-9]{1,30}){0,9}")
_NUMBER = re.compile(r"[-+]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?|\.?inf|\.?nan)")
_TEXT = re.compile(r"[^\0]*", re.DOTALL)
_BOOLS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_ARGUMENT = re.compile(r"^    (\w+): (.*(?:\n     +.*)*)", re.MULTILINE)  # of a docstring


class Leaf(NamedTuple):
    """A field that holds a scalar."""

    key: str  # as `training.updates`
    hint: Any
    default: Any  # MISSING where there is none
    meaning: str

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that the field accepts; empty if it accepts others."""
        if self._kind is bool:
            return ("true", "false")
        return get_args(self._kind) if get_origin(self._kind) is Literal else ()

    @property
    def metavar(self) -> str:
        return {int: "N", float: "X"}.get(self._kind, "TEXT")

    @property
    def is_optional(self) -> bool:
        return NoneType in get_args(self.hint)

    @property
    def _kind(self) -> Any:
        if not self.is_optional:
            return self.hint
        return next(kind for kind in get_args(self.hint) if kind is not NoneType)

    def value(self, scalar: Scalar) -> object:
        """Return the value that a scalar means in this field. Raises UsageError."""
        if scalar.is_null and self.is_optional:
            return None
        try:
            if self._kind in _READERS and not (scalar.is_null and self._kind is str):
                return _READERS[self._kind](scalar.text)
            return self.choices[self.choices.index(scalar.text)]
        except (KeyError, ValueError):
            raise UsageError(f"{self.key}: expected {self._expected}, got {scalar}") from None

    @property
    def _expected(self) -> str:
        names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
        expected = names.get(self._kind) or f"one of {', '.join(self.choices)}"
        return f"{expected}, or null" if self.is_optional else expected


def _bool(text: str) -> bool:
    return _BOOLS[text.lower()]


def _int(text: str) -> int:
    return int(_match(_WHOLE, text))


def _float(text: str) -> float:
    return float(_match(_NUMBER, text.lower()).replace(".inf", "inf").replace(".nan", "nan"))


def _str(text: str) -> str:
    text.encode("utf-8", "surrogateescape")  # as the name of a file may be
    return _match(_TEXT, text)


def _match(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError
    return text


_READERS: dict[Any, Callable[[str], object]] = {
    bool: _bool,
    int: _int,
    float: _float,
    str: _str,
}


class Section(NamedTuple):
    """A dataclass of settings."""

    key: str  # as `data.source`; empty for the whole
    about: str
    leaves: list[Leaf]  # but for those of the dataclasses in it


def sections(cls: type, key: str = "") -> Iterator[Section]:
    """Yield a dataclass, and the dataclasses within it."""
    hints, text = get_type_hints(cls), inspect.getdoc(cls) or ""
    meanings = {
        name: " ".join(about.split()).rstrip(".") for name, about in _ARGUMENT.findall(text)
    }
    prefix = f"{key}." if key else ""
    leaves = [
        Leaf(prefix + field.name, hints[field.name], field.default, meanings.get(field.name, ""))
        for field in fields(cls)
        if not is_dataclass(hints[field.name])
    ]
    if leaves:
        yield Section(key, text.partition("\n\nArgs:")[0], leaves)
    for name, hint in hints.items():
        if is_dataclass(hint):
            yield from sections(cast(type, hint), prefix + name)


def leaves(cls: type, key: str = "") -> dict[str, Leaf]:
    """Return all settings of a dataclass, and of the dataclasses within it, by key."""
    return {leaf.key: leaf for section in sections(cls, key) for leaf in section.leaves}


def build(cls: type[T], values: Mapping[str, Scalar]) -> T:
    """Return the dataclass of these values by key; others are defaults. Raises UsageError.

    A null in place of a dataclass within it leaves its defaults.
    """
    known, given = leaves(cls), dict[str, object]()
    for key, scalar in values.items():
        if key in known:
            given[key] = known[key].value(scalar)
        elif not any(name.startswith(f"{key}.") for name in known):
            raise UsageError(f"{short(key)}: no such setting{nearest(key, known)}")
        elif not scalar.is_null:
            raise UsageError(f"{key}: expected settings (key: value), got {scalar}")
    for key, leaf in known.items():
        if key not in given and leaf.default is MISSING:
            raise UsageError(f"{key}: missing: {re.split('[:.]', leaf.meaning)[0]}")
    return _instance(cls, given)


def _instance(cls: type[T], given: Mapping[str, object], prefix: str = "") -> T:
    hints, arguments = get_type_hints(cls), dict[str, Any]()
    for name, hint in hints.items():
        key = prefix + name
        if is_dataclass(hint):
            arguments[name] = _instance(cast(type, hint), given, f"{key}.")
        elif key in given:
            arguments[name] = given[key]
    return cls(**arguments)


def nearest(key: str, known: Iterable[str]) -> str:
    """Return a hint at the known key that was probably meant, or an empty text."""
    found = get_close_matches(key, known, 1)
    return f"; did you mean {found[0]}?" if found else ""
