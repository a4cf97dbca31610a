"""Plain data from files that may come from strangers: bounded, and never executed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml

from luong.toolkit.errors import UsageError

_DEPTH = 4  # depth of mappings in mappings
_NULL = ("", "~", "null", "Null", "NULL")


class Scalar(NamedTuple):
    """A value as it is written; the field that it belongs to decides what it means."""

    text: str
    quoted: bool = False

    @property
    def is_null(self) -> bool:
        return not self.quoted and self.text in _NULL

    def __str__(self) -> str:
        return "null" if self.is_null else repr(short(self.text))


Tree = dict[str, Any]  # the limit on the number of lists and scalars


def short(text: str) -> str:
    """Return text from a file in the form that errors show."""
    return text if len(text) <= 60 else f"{text[:60]}..."


def parse_json(text: bytes) -> Any:
    """Parse JSON of limited depth, without repeated keys, NaN or infinity. Raises ValueError."""
    try:
        return json.loads(
            text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((repeated, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"{short(repeated)!r} is there twice")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def parse_yaml(path: Path, content: bytes) -> dict[str, Scalar]:
    """Parse a YAML mapping of mappings: the scalars by their keys, as `training.updates`.

    Scalars stay text, so that `no` is a word where a word is expected; an empty mapping is null.
    Lists, aliases, anchors, tags, repeated keys and a second document are refused: raises
    UsageError, which names `path`.
    """
    try:
        return _document(yaml.parse(content.decode("utf-8-sig"), Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        place = error.problem_mark or error.context_mark
        line = f":{place.line + 1}" if place else ""
        problem = error.problem or error.context
        raise UsageError(f"{path}{line}: not valid YAML: {problem}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error


def _document(events: Iterator[yaml.Event]) -> dict[str, Scalar]:
    next(events)  # the start of the stream
    if isinstance(next(events), yaml.StreamEndEvent):
        return {}
    found = dict(_scalars("", next(events), events, set()))
    next(events)  # the end of the document
    if not isinstance(next(events), yaml.StreamEndEvent):
        raise ValueError("expected one document, got more")
    return found


def _scalars(
    key: str, event: yaml.Event, events: Iterator[yaml.Event], seen: set[str], depth: int = 0
) -> Iterator[tuple[str, Scalar]]:
    """Yield the scalars of the node that begins with `event` and belongs to `key`."""
    where = f"{short(key)}: " if key else ""
    if not isinstance(event, yaml.NodeEvent) or event.anchor or getattr(event, "tag", None):
        raise ValueError(f"{where}expected a plain value, got an alias, an anchor or a tag")
    if isinstance(event, yaml.ScalarEvent) and key:
        yield key, Scalar(event.value, quoted=not event.implicit[0])
        return
    if not isinstance(event, yaml.MappingStartEvent):
        kind = "text" if isinstance(event, yaml.ScalarEvent) else "a list"
        raise ValueError(f"{where}expected {'a value' if key else 'lines key: value'}, got {kind}")
    if depth == _DEPTH:
        raise ValueError(f"{where}nested too deeply")
    empty = True
    while not isinstance(name := next(events), yaml.MappingEndEvent):
        inner = getattr(name, "value", "")
        full = f"{key}.{inner}" if key else inner
        if not inner:
            raise ValueError(f"{where}expected names as keys")
        if full in seen:
            raise ValueError(f"{short(full)}: is there twice")
        seen.add(full)
        yield from _scalars(full, next(events), events, seen, depth + 1)
        empty = False
    if empty and key:
        yield key, Scalar("")
