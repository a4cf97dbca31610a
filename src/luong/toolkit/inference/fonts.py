"""Fonts for labels in any script."""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Iterable, Set
from functools import lru_cache

from matplotlib import font_manager, ft2font
from matplotlib.font_manager import FontEntry
from matplotlib.ft2font import FT2Font

_NOT_TEXT = "Last Resort"  # a font of boxes, without glyphs of its own
_FONTS = {  # for scripts, by the first word of their characters' names
    "HANGUL": "Noto Sans CJK KR",
    "HIRAGANA": "Noto Sans CJK JP",
    "KATAKANA": "Noto Sans CJK JP",
    "CJK": "Noto Sans CJK",
    "ARABIC": "Noto Sans Arabic",
    "HEBREW": "Noto Sans Hebrew",
    "DEVANAGARI": "Noto Sans Devanagari",
    "THAI": "Noto Sans Thai",
}


def families(texts: Iterable[str]) -> list[str]:
    """Return fonts that together have all characters of `texts`; warn of those that none has."""
    texts = list(texts)
    characters = {character for text in texts for character in text}
    missing = {ord(c) for c in characters if unicodedata.category(c) not in ("Cc", "Cf")}
    default = font_manager.FontProperties().get_name()
    chosen: list[str] = []
    for entry in sorted(
        font_manager.fontManager.ttflist, key=lambda e: (e.name != default, e.name)
    ):
        if not missing:
            break
        if entry.name in chosen or not _is_plain(entry):
            continue
        found = missing & _characters(entry.fname)
        if found:
            chosen.append(entry.name)
            missing -= found
    _warn_of_missing(missing)
    _warn_of_order(texts)
    return chosen or [default]


@lru_cache(8)  # usually the default font and few others suffice
def _characters(path: str) -> Set[int]:
    """Return the characters for which a font has a glyph: none, if its file is unreadable."""
    try:
        return FT2Font(path).get_charmap().keys()
    except (OSError, RuntimeError):
        return frozenset()


def _is_plain(entry: FontEntry) -> bool:
    return entry.style == "normal" and _NOT_TEXT not in entry.name


def _warn_of_missing(codes: Iterable[int]) -> None:
    """Warn once for each script."""
    scripts: dict[str, list[str]] = {}
    for code in sorted(codes):
        script = re.split("[ -]", unicodedata.name(chr(code), f"U+{code:04X}"))[0]
        scripts.setdefault(script, []).append(chr(code))
    for script, characters in scripts.items():
        some = " ".join(characters[:8]) + (" ..." if len(characters) > 8 else "")
        font = _FONTS.get(script, "one of the Noto fonts")
        warnings.warn(
            f"no font on this machine has {some} ({script}): drawn as boxes; "
            f"install a font of the script, such as {font}",
            stacklevel=4,
        )


def _warn_of_order(texts: Iterable[str]) -> None:
    """Warn if matplotlib has no Raqm (before 3.11), without which letters are in wrong order."""
    if hasattr(ft2font, "__libraqm_version__"):
        return
    if any(unicodedata.bidirectional(c) in ("R", "AL") for text in texts for c in text):
        warnings.warn(
            "this version of matplotlib draws words that are written from right to left in the "
            "wrong order, letter by letter: 3.11 and newer draw them rightly",
            stacklevel=4,
        )
