"""Turn tokens into labels of pictures, in which every character is visible."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

_LETTER = 0.11  # inches
_LONGEST = 40  # characters of a label
# characters that are never drawn: C0, DEL and C1; ends of lines; changes of direction;
# noncharacters
_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufdd0-\ufdef\ufffe\uffff]"
)
_JAMO = re.compile("[\u1100-\u11ff]")


class Labels(NamedTuple):
    """Tokens as they are drawn along a side of a picture."""

    texts: Sequence[str]
    spans: Sequence[tuple[int, int, str]]  # first and last token, and what all from one to the
    # other are together: a letter with its marks, a syllable of letters

    @property
    def width(self) -> float:
        """The length of the longest label, in inches."""
        return max(map(width, self.texts))


def of(tokens: Sequence[str]) -> Labels:
    """Return the tokens with invisible characters made visible.

    White space is drawn as ␣, a combining mark on ◌, a conjoining jamo (decomposed Hangul) as the
    letter it is, and a control character as Python writes it, `\\t`.
    """
    return Labels([_label(token) for token in tokens], _spans(tokens))


def width(text: str) -> float:
    """Return the approximate width of a text in inches; ideographs are as wide as high."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return _LETTER * len(text) + 0.06 * wide


def shown(text: str) -> str:
    """Return `text`, cut to what fits a picture, with control characters made visible."""
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    return "".join(map(_shown, text))


def _label(token: str) -> str:
    if token.isspace() or len(token) == 1:
        return "".join(map(_lonely, token[:_LONGEST]))
    composed = unicodedata.normalize("NFC", token) if _JAMO.search(token) else token
    carrier = "◌" if unicodedata.category(composed[:1] or "a").startswith("M") else ""
    return carrier + "".join(map(_letter, shown(composed)))


def _lonely(character: str) -> str:
    """Return a character that stands for itself."""
    category = unicodedata.category(character)
    if category == "Cf":
        return repr(character)[1:-1]
    if character.isspace() and category != "Cc":
        return "␣"
    return f"◌{character}" if category.startswith("M") else _letter(_shown(character))


def _shown(character: str) -> str:
    if _CONTROL.match(character):
        return repr(character)[1:-1]
    return character


def _letter(character: str) -> str:
    """Return the letter that a conjoining jamo is."""
    if _JAMO.match(character):
        name = re.sub("CHOSEONG|JUNGSEONG|JONGSEONG", "LETTER", unicodedata.name(character, ""))
        with suppress(KeyError):  # letters of old Hangul
            return unicodedata.lookup(name)
    return character


def _spans(tokens: Sequence[str]) -> list[tuple[int, int, str]]:
    """Return the tokens, from first to last, that make one letter or syllable together."""
    found: list[tuple[int, int, str]] = []
    first, text = 0, ""
    for k, token in enumerate([*tokens, ""]):
        if _joins(text, token):
            text = unicodedata.normalize("NFC", text + token)
            continue
        if k - first > 1:
            found.append((first, k - 1, _label(text)))
        first, text = k, token
    return found


def _joins(text: str, token: str) -> bool:
    """Return whether `token` goes on with the last letter of `text`."""
    if not text or not token or text[-1].isspace() or len(text) > _LONGEST:
        return False
    if unicodedata.category(token[0]).startswith("M"):
        return not unicodedata.category(text[0]).startswith("M")
    joined = unicodedata.normalize("NFC", text[-1] + token[0])
    return len(joined) == 1
