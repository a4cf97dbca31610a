"""Vocabularies turn text into symbols and back; each is a JSON file of `tokenizers`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from luong.seq2seq.model import END, UNKNOWN
from luong.toolkit import files
from luong.toolkit.choices import SPECIAL
from luong.toolkit.config import Side
from luong.toolkit.errors import ToolkitError
from luong.toolkit.plain import parse_json, short
from luong.toolkit.text import places
from luong.toolkit.text.places import Places

_ALL = 2**31  # the library's trainers want a number
_NEVER = -1e6  # log-probability of a piece that no text is cut into
_MOST = 20 << 20  # largest file in bytes; the library then takes up to a gigabyte
_LONGEST = 100  # characters of a unigram piece; the trainer stops at 16
_CHARACTERS = 2_000_000  # most characters in all unigram pieces; each takes hundreds of bytes
_NO_SYMBOL = re.compile("[\\n\\0\\ud800-\\udfff]")
_PIECES = 8000  # default vocabulary_size of bpe and unigram


class Vocabulary:
    """The symbols of one side of a corpus.

    A line is normalised and split by a `tokenizers.Tokenizer` into characters, words or pieces of
    words; each of these is a symbol, or UNKNOWN. A piece of a word that begins it starts with "▁".
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        names = tokenizer.get_vocab()
        if [names.get(special) for special in SPECIAL] != list(range(len(SPECIAL))):
            raise ToolkitError(f"the first symbols should be {' '.join(SPECIAL)}")
        self.names = sorted(names, key=names.__getitem__)

    @classmethod
    def build(cls, side: Side, lines: Iterable[str]) -> Vocabulary:
        """Learn the symbols of `lines`, which are read once; frequent symbols come first."""
        subwords = side.level in ("bpe", "unigram")
        tokenizer = _tokenizer(side, _MODELS[side.level]())
        try:
            tokenizer.train_from_iterator(lines, _trainer(side))
        except ToolkitError:
            raise
        except Exception as error:  # tokenizers raises plain Exception
            wanted = f"no {side.level} vocabulary of {side.vocabulary_size or _PIECES} symbols"
            raise ToolkitError(f"vocabulary_size: {wanted}: {error}") from error
        if subwords:
            return cls(_tokenizer(side, _subwords(tokenizer)))
        ranks = tokenizer.get_vocab()
        table = dict.fromkeys([*SPECIAL, *sorted(ranks, key=ranks.__getitem__)])
        symbols = {symbol: i for i, symbol in enumerate(islice(table, side.vocabulary_size))}
        return cls(_tokenizer(side, models.WordLevel(symbols, unk_token=SPECIAL[UNKNOWN])))

    @classmethod
    def load(cls, path: Path, side: Side) -> Vocabulary:
        """Read the symbols of a side of these settings, as `save` wrote them.

        The library itself never reads the file, which may come from a stranger: it gets only the
        symbols, and the merges or scores. The rest of the file must be as `save` would write it.
        """
        try:
            found = parse_json(files.read(path, _MOST))
            model = _stored(side, found)
        except ValueError as error:
            raise ToolkitError(f"{path}: not a vocabulary ({error})") from error
        rest = json.loads(_tokenizer(side, _MODELS[side.level]()).to_str())
        for tree in (found, rest):
            tree["model"] |= dict.fromkeys(("vocab", "merges", "unk_id"))
        for key in sorted(found.keys() | rest.keys()):
            if not _agree(found.get(key), rest.get(key)):
                raise ToolkitError(f"{path}: its {key} is not that of the settings in config.yaml")
        return cls(_tokenizer(side, model))

    def save(self, path: Path) -> None:
        text = self.tokenizer.to_str(pretty=True).encode()
        if len(text) > _MOST:
            raise ToolkitError(
                f"{path}: {len(self):,} symbols take more than {_MOST:,} bytes; set a "
                "vocabulary_size, or a min_frequency"
            )
        path.write_bytes(text)

    @property
    def digest(self) -> str:
        """The SHA-256 of the symbols, and of the merges or scores that cut words into them."""
        learnt = not isinstance(self.tokenizer.model, models.WordLevel)
        model = json.loads(self.tokenizer.to_str())["model"] if learnt else {}
        scores = model.get("vocab") if isinstance(self.tokenizer.model, models.Unigram) else None
        content = json.dumps([self.names, model.get("merges"), scores])
        return hashlib.sha256(content.encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.names)

    def split(self, line: str) -> list[str]:
        """Return the pieces of a line, one for each of its symbols, known or not."""
        if isinstance(self.tokenizer.model, models.WordLevel):
            normalized = self.tokenizer.normalizer.normalize_str(line)
            pieces = self.tokenizer.pre_tokenizer.pre_tokenize_str(normalized)
            return [piece for piece, _ in pieces]
        encoded = self.tokenizer.encode(line, add_special_tokens=False)
        return [
            line[slice(*span)] if symbol == UNKNOWN else piece
            for symbol, piece, span in zip(
                encoded.ids, encoded.tokens, encoded.offsets, strict=True
            )
        ]

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the symbols of each line, UNKNOWN for pieces never seen, and END."""
        encoded = self.tokenizer.encode_batch_fast(lines, add_special_tokens=False)
        return [[*_ordinary(line.ids), END] for line in encoded]

    @property
    def reads_characters(self) -> bool:
        """Return whether each symbol is a character; otherwise it is a word or a part of one."""
        return isinstance(self.tokenizer.decoder, decoders.Fuse)

    def places(self, lines: Sequence[str]) -> list[Places]:
        """Return the word or character of each line that each of its symbols belongs to."""
        return [
            places.find(
                line, (start for start, _ in read.offsets), characters=self.reads_characters
            )
            for line, read in zip(
                lines, self.tokenizer.encode_batch(lines, add_special_tokens=False), strict=True
            )
        ]

    def places_of(self, pieces: Sequence[str]) -> Places:
        """Return the word or character that each of `pieces` belongs to in the text of `join`."""
        before = [len(self.join(pieces[:1])), *(len(self.join(["", p])) for p in pieces[1:])]
        starts = [0, *accumulate(before)][: len(pieces)]
        return places.find(self.join(pieces), starts, characters=self.reads_characters)

    def decode(self, symbols: Iterable[int]) -> str:
        """Return the text of `symbols`."""
        return self.join([self.names[symbol] for symbol in symbols])

    def join(self, pieces: Sequence[str]) -> str:
        """Return the text of `pieces`, known or not: the inverse of `split`."""
        decoder = self.tokenizer.decoder
        return " ".join(pieces) if decoder is None else str(decoder.decode(list(pieces)))


def _ordinary(symbols: list[int]) -> list[int]:
    """Return the symbols of a text; names of special symbols in it become UNKNOWN."""
    if min(symbols, default=UNKNOWN) >= UNKNOWN:
        return symbols
    return [max(symbol, UNKNOWN) for symbol in symbols]


def _stored(side: Side, found: object) -> Any:
    """Return the model of the pieces that a file holds. Raises ValueError."""
    match side.level, found:
        case "unigram", {"model": {"unk_id": 3, "vocab": [*pieces]}}:
            return _unigram(pieces)
        case "bpe", {"model": {"vocab": dict(ids), "merges": [*merges]}}:
            return _bpe(_symbols(_ranked(ids)), merges)
        case "characters" | "words", {"model": {"type": "WordLevel", "vocab": dict(ids)}}:
            return models.WordLevel(_symbols(_ranked(ids)), unk_token=SPECIAL[UNKNOWN])
    raise ValueError(f"not one of {side.level}")


def _ranked(ids: dict[str, Any]) -> list[str]:
    """Return symbols in the order of their numbers."""
    if not all(type(number) is int for number in ids.values()):
        raise ValueError("the number of a symbol is none")
    names = sorted(ids, key=ids.__getitem__)
    if [ids[name] for name in names] != list(range(len(names))):
        raise ValueError("symbols should be numbered from 0 on, without gaps")
    return names


def _symbols(names: list[str]) -> dict[str, int]:
    """Return symbols and their numbers; raise ValueError if no text can have them."""
    if tuple(names[: len(SPECIAL)]) != SPECIAL:
        raise ValueError(f"the first symbols should be {' '.join(SPECIAL)}")
    for name in names:
        if not name or _NO_SYMBOL.search(name):
            raise ValueError(f"no line of text has the symbol {short(name)!r}")
    return {name: i for i, name in enumerate(names)}


def _bpe(symbols: dict[str, int], merges: list[Any]) -> Any:
    for merge in merges:
        match merge:
            case [str(a), str(b)] if a in symbols and b in symbols and a + b in symbols:
                pass
            case _:
                raise ValueError(f"{short(str(merge))} is no merge of its symbols")
    pairs = [(a, b) for a, b in merges]
    if len(set(pairs)) < len(pairs):
        raise ValueError("a merge is there twice")
    return models.BPE(symbols, pairs, unk_token=SPECIAL[UNKNOWN])


def _unigram(pieces: list[Any]) -> Any:
    for piece in pieces:
        match piece:
            case [str(name), float(score)] if len(name) <= _LONGEST and abs(score) <= -_NEVER:
                pass
            case _:
                raise ValueError(f"{short(str(piece))} is no piece and its score")
    scores = [(name, score) for name, score in pieces]
    if len(_symbols([name for name, _ in scores])) < len(scores):
        raise ValueError("a symbol is there twice")
    if sum(len(name) for name, _ in scores) > _CHARACTERS:
        raise ValueError(f"its pieces have more than {_CHARACTERS:,} characters together")
    return models.Unigram(scores, UNKNOWN, byte_fallback=False)


def _agree(found: object, expected: object) -> bool:
    """Return whether two parts of files mean the same: versions may leave out a null."""
    if isinstance(found, dict) and isinstance(expected, dict):
        keys = found.keys() | expected.keys()
        return all(_agree(found.get(key), expected.get(key)) for key in keys)
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(_agree, found, expected))
    return found == expected or (found in (None, False) and expected in (None, False))


_MODELS: dict[str, Any] = {
    "characters": models.WordLevel,
    "words": models.WordLevel,
    "bpe": lambda: models.BPE(unk_token=SPECIAL[UNKNOWN]),
    "unigram": models.Unigram,
}


def _subwords(trained: Tokenizer) -> Any:
    """Return the learnt pieces in a model in which no text means a special symbol."""
    learnt = json.loads(trained.to_str())["model"]
    if learnt["type"] == "BPE":
        merges = [(a, b) for a, b in learnt["merges"] if not any(s in a + b for s in SPECIAL)]
        return models.BPE(learnt["vocab"], merges, unk_token=SPECIAL[UNKNOWN])
    scores = [(piece, _NEVER if piece in SPECIAL else score) for piece, score in learnt["vocab"]]
    return models.Unigram(scores, UNKNOWN, byte_fallback=False)


def _tokenizer(side: Side, model: Any) -> Tokenizer:
    """Return the tokenizer of a side, which normalises lines, splits and joins them."""
    tokenizer = Tokenizer(model)
    steps = [] if side.normalization == "none" else [getattr(normalizers, side.normalization)()]
    steps += [normalizers.Lowercase()] if side.lowercase else []
    match side.level:
        case "characters":
            tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(?m:.)"), "isolated")
            tokenizer.decoder = decoders.Fuse()
        case "words":
            tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        case _:  # white space is one space, and that is "▁", as SentencePiece has it
            steps += [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
            tokenizer.decoder = decoders.Metaspace()
    tokenizer.normalizer = normalizers.Sequence(steps)
    return tokenizer


def _trainer(side: Side) -> Any:
    """Return the library's trainer for the model of a side."""
    size = side.vocabulary_size or _PIECES
    match side.level:
        case "bpe":
            return trainers.BpeTrainer(
                vocab_size=size,
                min_frequency=side.min_frequency,
                limit_alphabet=max(1, (size - len(SPECIAL)) // 2),  # room for merges
                special_tokens=list(SPECIAL),
                show_progress=False,
            )
        case "unigram":
            return trainers.UnigramTrainer(
                vocab_size=size,
                special_tokens=list(SPECIAL),
                unk_token=SPECIAL[UNKNOWN],
                show_progress=False,
            )
        case _:
            return trainers.WordLevelTrainer(
                vocab_size=_ALL, min_frequency=side.min_frequency, show_progress=False
            )
