"""Text to symbols and back, by the `tokenizers` library; one JSON file a side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from luong.seq2seq.model import END, UNKNOWN
from luong.toolkit.config import Side
from luong.toolkit.errors import ToolkitError

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")  # in the order of PAD, START, END, UNKNOWN


class Vocabulary:
    """The symbols of one side of a corpus.

    A line is normalised and split (into characters or into words) by a `tokenizers.Tokenizer`; each
    piece is a symbol, or UNKNOWN.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        names = tokenizer.get_vocab()
        if [names.get(special) for special in SPECIAL] != list(range(len(SPECIAL))):
            raise ToolkitError(f"the first symbols should be {' '.join(SPECIAL)}")
        self.names = sorted(names, key=names.__getitem__)
        self.separator = "" if isinstance(tokenizer.pre_tokenizer, pre_tokenizers.Split) else " "

    @classmethod
    def build(cls, side: Side, lines: Iterable[str]) -> Vocabulary:
        """All symbols of `lines`, the frequent ones first."""
        tokenizer = Tokenizer(models.WordLevel(_table([]), unk_token=SPECIAL[UNKNOWN]))
        steps = [] if side.normalization == "none" else [getattr(normalizers, side.normalization)()]
        steps += [normalizers.Lowercase()] if side.lowercase else []
        tokenizer.normalizer = normalizers.Sequence(steps)
        tokenizer.pre_tokenizer = (
            pre_tokenizers.Split(Regex("(?m:.)"), "isolated")
            if side.level == "characters"
            else pre_tokenizers.WhitespaceSplit()
        )
        counts = Counter(piece for line in lines for piece in _pieces(tokenizer, line))
        ranked = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))
        tokenizer.model = models.WordLevel(_table(ranked), unk_token=SPECIAL[UNKNOWN])
        return cls(tokenizer)

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:  # tokenizers raises plain Exception
            raise ToolkitError(f"{path}: not a vocabulary ({error})") from error

    def save(self, path: Path) -> None:
        self.tokenizer.save(str(path))

    def __len__(self) -> int:
        return len(self.names)

    def split(self, line: str) -> list[str]:
        """The pieces of a line, whether they are known or not."""
        return _pieces(self.tokenizer, line)

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Symbols of each line, UNKNOWN for pieces never seen, and END."""
        encoded = self.tokenizer.encode_batch_fast(lines, add_special_tokens=False)
        return [[i if i > UNKNOWN else UNKNOWN for i in line.ids] + [END] for line in encoded]

    def decode(self, symbols: Iterable[int]) -> str:
        """The text of `symbols`."""
        return self.separator.join(self.names[symbol] for symbol in symbols)


def _table(symbols: Iterable[str]) -> dict[str, int]:
    return {symbol: i for i, symbol in enumerate(dict.fromkeys([*SPECIAL, *symbols]))}


def _pieces(tokenizer: Tokenizer, line: str) -> list[str]:
    normalized = tokenizer.normalizer.normalize_str(line)
    return [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalized)]
