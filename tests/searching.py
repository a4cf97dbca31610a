"""Models of a few symbols, and the enumeration of all their outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from luong.seq2seq import Hypothesis, Seq2Seq, Settings, build
from luong.seq2seq.model import END, PAD, START, UNKNOWN

KINDS: tuple[dict[str, Any], ...] = (
    {"score": "dot", "input_feeding": True},
    {"score": "scaled_dot", "window": "local_m", "half_width": 1, "decoder_layers": 2},
    {"score": "general", "cell": "gru", "attend_end": True},
    {"score": "concat", "window": "local_p", "half_width": 1, "input_feeding": True},
    {"score": "location", "location_length": 4, "bidirectional": False, "reverse_source": True},
)
TARGETS = 7
WORDS = (UNKNOWN, 4, 5, 6)  # all that an output may hold


def make(seed: int = 0, targets: int = TARGETS) -> Seq2Seq:
    torch.manual_seed(seed)
    shape = Settings(embedding_size=5, hidden_size=6, **KINDS[seed % len(KINDS)])
    model = build(shape, 11, targets).double()
    for parameter in model.parameters():  # large weights: every part matters
        torch.nn.init.uniform_(parameter, -1.5, 1.5)
    return model.eval()


def source(*rows: str) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows), default=0) + 1
    symbols = [[ord(c) - ord("a") + 4 for c in row] + [END] for row in rows]
    padded = [row + [PAD] * (longest - len(row)) for row in symbols]
    return torch.tensor(padded), torch.tensor([len(row) for row in rows])


class Entry(NamedTuple):
    """An output as the oracles have it."""

    symbols: tuple[int, ...]
    finished: bool
    score: float

    def rank(self, penalty: float) -> tuple[bool, float]:
        length = len(self.symbols) + self.finished
        return self.finished, self.score / max(length, 1) ** penalty


@torch.no_grad()
def forced(models: Sequence[Seq2Seq], row: str, symbols: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Log-probabilities (n + 1, symbols) after each prefix of `symbols`, and weights (n + 1, m)."""
    previous = torch.tensor([[START, *symbols]])
    probs, weights = [], []
    for model in models:
        memory, state = model.encode(*source(row))
        step = model.decoder(previous, state, memory, need_weights=True)
        probs.append(torch.softmax(step.logits[0], -1))
        weights.append(step.weights[0, :, : len(row)])  # END may be attended as well
    return torch.stack(probs).mean(0).log(), torch.stack(weights).mean(0)


def probability(models: Sequence[Seq2Seq], row: str, symbols: Sequence[int], end: bool) -> float:
    log_probs, _ = forced(models, row, symbols)
    steps = [*symbols, END] if end else list(symbols)
    return math.fsum(float(log_probs[i, symbol]) for i, symbol in enumerate(steps))


def enumerate_all(
    models: Sequence[Seq2Seq], row: str, limit: int, least: int, penalty: float
) -> list[Entry]:
    """Every output of at most `limit` steps, best first."""
    entries = [
        Entry(symbols, end, probability(models, row, symbols, end))
        for n in range(limit + 1)
        for symbols in product(WORDS, repeat=n)
        for end in (True, False)
        if (least <= n < limit if end else n == limit)
    ]
    return sorted(entries, key=lambda entry: entry.rank(penalty), reverse=True)


def same(found: Sequence[Hypothesis], expected: Sequence[Entry]) -> None:
    assert [(tuple(f.symbols), f.finished) for f in found] == [(e[0], e[1]) for e in expected]
    assert [f.score for f in found] == pytest.approx([e.score for e in expected], abs=1e-9)


def repeats(symbols: Sequence[int], n: int) -> bool:
    """Whether n symbols in a row occur twice."""
    ngrams = [tuple(symbols[i : i + n]) for i in range(len(symbols) - n + 1)]
    return n > 0 and len(set(ngrams)) < len(ngrams)


def allowed(symbols: Sequence[int], n: int, end: bool) -> list[int]:
    """What may follow `symbols`; END where nothing else may."""
    words = [word for word in WORDS if not repeats([*symbols, word], n)]
    return [*words, END] if end or not words else words
