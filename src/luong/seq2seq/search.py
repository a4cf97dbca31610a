"""Decoding: the most probable outputs of a model, found step by step for many sentences at once.

There is one search. A sentence has up to `beam` open hypotheses; at each step every one of them is
extended by every symbol, and of all these candidates the best go on. A candidate that ends among
the best `beam` is an output. Greedy search is a beam of one; sampling draws its candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from luong.seq2seq.decoding import Decoding, Sampling
from luong.seq2seq.model import END, PAD, START, Seq2Seq
from luong.seq2seq.rules import NEVER, Rules

_CUT = -(2.0**40)  # a rank below that of every output that ends
_LEAVE = 0.75  # finished sentences leave the batch when at most this share of it is still open


class Hypothesis(NamedTuple):
    """An output of the search for one source."""

    symbols: list[int]  # without END
    score: float  # log-probability, END included where there is one
    weights: Tensor  # (n, m): row i is what was attended when symbol i was predicted
    finished: bool  # False: cut at the length limit


@torch.inference_mode()
def decode(
    models: Sequence[Seq2Seq],
    source: Tensor,
    lengths: Tensor,
    decoding: Decoding,
    *,
    prefix: Tensor | None = None,
    numbers: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """Return the outputs of each sentence, best first: `n_best`, or fewer if there are no more.

    source and lengths as in `Seq2Seq.encode`. Several models are an ensemble: the mean of their
    probabilities decides, and their weights are averaged. `prefix` (batch, any), padded by PAD,
    holds the symbols that an output begins with; its limit allows at least END after them.
    `numbers`, which sampling uses, are those of the sentences; by default 0, 1, ...

    END cannot be the first symbol unless the source is empty; PAD and START never come. A prefix
    may repeat itself whatever `no_repeat_ngram` says; what comes after it may not repeat it.
    Outputs that end come before those that are cut. The search of a sentence stops when no open
    hypothesis can still become one of its n best. Nothing depends on batch mates.
    """
    if not len(lengths):
        return []
    rules = Rules.make(decoding, lengths, prefix, numbers)
    ensemble = _Ensemble(models, source, lengths)
    rows = torch.arange(len(lengths), device=source.device)  # the sentences of the batch as it is
    previous = source.new_full((len(lengths), 1), START)
    scores = torch.zeros_like(previous, dtype=torch.float64)
    kept = _Outputs.none(len(lengths), decoding.n_best, source.device)
    outputs = kept = kept.cut(rules.limits == 0, scores, 0)
    scores[rules.limits == 0] = NEVER
    history: list[_Past] = []
    for step in range(rules.longest):
        log_probs, weights = ensemble.step(previous)
        rules.forbid(log_probs, step)
        candidates = _candidates(rules, scores, log_probs, step)
        kept = kept.add(candidates, decoding, step)
        scores, parents, previous = candidates.open(decoding.width)
        rules = rules.after(parents, previous)
        history.append(_Past(previous, parents, weights, rows))
        cut = rules.limits <= step + 1
        kept = kept.cut(cut, scores, step + 1)
        # log-probabilities only fall: the best that is open ends at most as good as this
        bound = scores[:, 0] / rules.limits.double() ** decoding.length_penalty
        closed = cut | (kept.ranks[:, -1] >= bound)
        still = int((~closed).sum())
        if still <= _LEAVE * len(rows):
            outputs = outputs.store(rows, kept)
            if not still:
                break
            stay = (~closed).nonzero().squeeze(1)
            rows, previous, scores = rows[stay], previous[stay], scores[stay]
            rules, kept = rules.select(stay), kept.select(stay)
            ensemble.select(stay)
            ensemble.reorder(parents[stay])
        else:
            scores = scores.masked_fill(closed[:, None], NEVER)
            ensemble.reorder(parents)
    return _trace(history, outputs, lengths)


def mean_log_probs(logits: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the mean of the models' probabilities, in float32 at least."""
    log_probs = [
        torch.log_softmax(x if x.dtype == torch.float64 else x.float(), -1) for x in logits
    ]
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.stack(log_probs).logsumexp(0) - math.log(len(log_probs))


class _Ensemble:
    """Models that predict together, with the memories and states of their decoders."""

    def __init__(self, models: Sequence[Seq2Seq], source: Tensor, lengths: Tensor) -> None:
        self.decoders = [model.decoder for model in models]
        self.width = source.shape[1] - 1  # a model may attend END as well
        encoded = [model.encode(source, lengths) for model in models]
        self.memories = [memory for memory, _ in encoded]
        self.states = [state for _, state in encoded]

    def step(self, previous: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (batch, hypotheses, symbols), weights (batch, hypotheses, m)."""
        steps = [
            decoder.step(previous, state, memory, need_weights=True)
            for decoder, state, memory in zip(
                self.decoders, self.states, self.memories, strict=True
            )
        ]
        self.states = [step.state for step in steps]
        weights = [w[..., : self.width] for w in (step.weights for step in steps) if w is not None]
        together = weights[0] if len(weights) == 1 else torch.stack(weights).mean(0)
        return mean_log_probs([step.logits for step in steps]), together

    def select(self, rows: Tensor) -> None:
        """Keep only the sentences of these rows."""
        self.memories = [memory.select(rows) for memory in self.memories]
        self.states = [state.select(rows) for state in self.states]

    def reorder(self, parents: Tensor) -> None:
        """Replace the hypotheses by the children of `parents` (batch, any)."""
        if parents.shape[1] > 1:  # a single hypothesis is its own child
            self.states = [state.reorder(parents) for state in self.states]


class _Candidates(NamedTuple):
    """Hypotheses and a next symbol, best first: (batch, candidates) each."""

    scores: Tensor
    parents: Tensor
    symbols: Tensor

    def open(self, width: int) -> _Candidates:
        """Return the best `width` that do not end."""
        going = self.scores.masked_fill(self.symbols == END, NEVER)
        scores, best = going.topk(min(width, going.shape[1]))
        return _Candidates(scores, self.parents.gather(1, best), self.symbols.gather(1, best))


class _Past(NamedTuple):
    """The record of a step, from which hypotheses are traced back."""

    symbols: Tensor  # (batch, hypotheses)
    parents: Tensor  # (batch, hypotheses): which of the hypotheses before they extend
    weights: Tensor  # (batch, hypotheses before, m)
    rows: Tensor  # (batch,): which sentences are in the batch


class _Outputs(NamedTuple):
    """The best outputs of each sentence so far, best first: (batch, n_best) each."""

    ranks: Tensor  # log-probability over lengthᵅ, or _CUT and less; -inf: there is none
    scores: Tensor  # log-probability
    lengths: Tensor  # symbols, END not counted
    places: Tensor  # among the hypotheses, after its last symbol
    finished: Tensor

    @classmethod
    def none(cls, batch: int, n_best: int, device: torch.device) -> _Outputs:
        never = torch.full((batch, n_best), NEVER, dtype=torch.float64, device=device)
        zero = torch.zeros_like(never, dtype=torch.long)
        return cls(never, never.clone(), zero, zero.clone(), zero.bool())

    def add(self, candidates: _Candidates, decoding: Decoding, step: int) -> _Outputs:
        """Return these outputs, and the candidates that end, if they are among the best."""
        scores, parents, symbols = (x[:, : decoding.width] for x in candidates)
        scores = scores.masked_fill(symbols != END, NEVER)
        ranks = scores / (step + 1) ** decoding.length_penalty
        return self._joined(ranks, scores, step, parents, finished=True)

    def cut(self, rows: Tensor, scores: Tensor, length: int) -> _Outputs:
        """Return these outputs and, after them, the open hypotheses of `rows` (bool), now cut."""
        if not bool(rows.any()):
            return self
        places = torch.arange(scores.shape[1], device=scores.device).expand(scores.shape)
        scores = scores.masked_fill(~rows[:, None], NEVER)
        ranks = (_CUT - places.double()).where(scores > NEVER, NEVER)  # they are in order
        return self._joined(ranks, scores, length, places, finished=False)

    def select(self, rows: Tensor) -> _Outputs:
        return _Outputs(*(x[rows] for x in self))

    def store(self, rows: Tensor, others: _Outputs) -> _Outputs:
        """Return these outputs, with `others` at `rows`."""
        return _Outputs(*(x.index_copy(0, rows, y) for x, y in zip(self, others, strict=True)))

    def _joined(
        self, ranks: Tensor, scores: Tensor, length: int, places: Tensor, *, finished: bool
    ) -> _Outputs:
        lengths = torch.full_like(places, length)
        ended = torch.full_like(places, finished, dtype=torch.bool)
        pairs = zip(self, (ranks, scores, lengths, places, ended), strict=True)
        both = _Outputs(*(torch.cat(pair, 1) for pair in pairs))
        ranks, best = both.ranks.topk(self.ranks.shape[1])
        return _Outputs(ranks, *(x.gather(1, best) for x in both[1:]))


def _candidates(rules: Rules, scores: Tensor, log_probs: Tensor, step: int) -> _Candidates:
    """Return extensions of the open hypotheses by a symbol: drawn ones, or the best."""
    if rules.decoding.sampling and rules.noise is not None:
        return _drawn(scores, log_probs, rules.decoding.sampling, rules.noise[:, step])
    return _best(scores, log_probs, rules.decoding.beam)


def _best(scores: Tensor, log_probs: Tensor, beam: int) -> _Candidates:
    """Return the best candidates: `beam` of them do not end, if as many exist."""
    symbols = log_probs.shape[-1]
    log_probs, own = log_probs.topk(min(2 * beam, symbols))  # no hypothesis can have more of them
    totals = (scores[..., None] + log_probs).flatten(1)
    totals, best = totals.topk(min(2 * beam, totals.shape[1]))
    parents = best.div(own.shape[-1], rounding_mode="floor")
    return _Candidates(totals, parents, own.flatten(1).gather(1, best))


def _drawn(scores: Tensor, log_probs: Tensor, sampling: Sampling, noise: Tensor) -> _Candidates:
    """Return a candidate of each hypothesis, drawn by its distribution function from `noise`."""
    parents = torch.arange(noise.shape[1], device=noise.device)
    parents = parents.clamp(max=scores.shape[1] - 1).expand(noise.shape)  # one, at the first step
    shaped = (log_probs.double() / sampling.temperature).softmax(-1)
    probs, symbols = shaped.topk(min(sampling.top_k or shaped.shape[-1], shaped.shape[-1]))
    probs = probs / probs.sum(-1, keepdim=True)
    probs = probs.masked_fill(probs.cumsum(-1) - probs >= sampling.top_p, 0)
    below = probs.cumsum(-1)
    rows = torch.arange(len(noise), device=noise.device)[:, None]
    below, symbols = below[rows, parents], symbols[rows, parents]
    drawn = (below <= noise[..., None] * below[..., -1:]).sum(-1, keepdim=True)
    chosen = symbols.gather(-1, drawn).squeeze(-1)
    totals = scores.gather(1, parents) + log_probs[rows, parents, chosen]
    return _Candidates(totals, parents, chosen)


def _trace(history: list[_Past], outputs: _Outputs, lengths: Tensor) -> list[list[Hypothesis]]:
    """Return the outputs, each followed back from its last symbol to its first."""
    shape = (*outputs.lengths.shape, int(outputs.lengths.max()))
    symbols = outputs.places.new_full(shape, PAD)
    weights = torch.zeros(*shape, 0, device=lengths.device)
    if history:
        weights = history[0].weights.new_zeros(*shape, history[0].weights.shape[-1])
    places = outputs.places
    for step in reversed(range(shape[-1])):
        past = history[step]
        row = torch.zeros_like(lengths)
        row[past.rows] = torch.arange(len(past.rows), device=row.device)
        inside = step < outputs.lengths
        here = (row[:, None], places.where(inside, 0))
        symbols[..., step] = past.symbols[here].where(inside, PAD)
        parents = past.parents[here]
        weights[..., step, :] = past.weights[row[:, None], parents]
        places = parents.where(inside, places)
    return [
        [
            Hypothesis(found[:n], score, attended[:n, :m].clone(), finished)
            for found, n, score, attended, finished, rank in zip(*row, strict=True)
            if rank > NEVER
        ]
        for m, *row in zip(
            lengths.tolist(),
            symbols.tolist(),
            outputs.lengths.tolist(),
            outputs.scores.tolist(),
            weights,
            outputs.finished.tolist(),
            outputs.ranks.tolist(),
            strict=True,
        )
    ]
