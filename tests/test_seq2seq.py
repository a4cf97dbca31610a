"""The model, against the formulas of the paper."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from luong.seq2seq import Seq2Seq
from luong.seq2seq.model import END, PAD, START

SCORES = ("dot", "scaled_dot", "general", "concat")


def make(score: str = "general", seed: int = 0) -> Seq2Seq:
    torch.manual_seed(seed)
    model = Seq2Seq(11, 13, embedding_size=5, hidden_size=6, score=score, dropout=0.5).double()
    for parameter in model.parameters():  # large weights: every part matters
        torch.nn.init.uniform_(parameter, -1, 1)
    return model.eval()


def source(*rows: str) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows)) + 1
    symbols = [[ord(c) - ord("a") + 4 for c in row] + [END] for row in rows]
    padded = [row + [PAD] * (longest - len(row)) for row in symbols]
    return torch.tensor(padded), torch.tensor([len(row) for row in rows])


@pytest.mark.parametrize("score", SCORES)
def test_logits_are_those_of_the_formulas(score: str) -> None:
    model = make(score)
    symbols, lengths = source("abc")
    previous = torch.tensor([[START, 5, 7]])
    logits = model(symbols, lengths, previous)

    encoder, decoder = model.encoder, model.decoder
    states, (h, c) = encoder.lstm(encoder.embedding(symbols))  # END read, then not attended
    keys = states[0, :3]
    state = (
        torch.tanh(encoder.bridge[0](torch.cat([h[0], h[1]], -1)))[None],
        encoder.bridge[1](torch.cat([c[0], c[1]], -1))[None],
    )
    for t in range(3):
        hidden, state = decoder.lstm(decoder.embedding(previous[:, t : t + 1]), state)
        query = hidden[0, 0]
        scores = decoder.attention.score(query[None], keys)[0]
        context = torch.softmax(scores, 0) @ keys
        attentional = torch.tanh(decoder.attentional.weight @ torch.cat([context, query]))
        torch.testing.assert_close(logits[0, t], decoder.output.weight @ attentional)


@pytest.mark.parametrize("score", SCORES)
def test_steps_of_reordered_hypotheses_equal_their_symbols_in_a_row(score: str) -> None:
    model = make(score)
    memory, state = model.encode(*source("abc", "de", "a"))
    state = state.reorder(torch.zeros(3, 2, dtype=torch.long))  # two hypotheses each
    kept = torch.tensor([2, 0])
    memory, state = memory.select(kept), state.select(kept)
    first, second = torch.tensor([[5, 6], [7, 8]]), torch.tensor([[9, 4], [11, 12]])
    state = model.decoder.step(first, state, memory).state
    state = state.reorder(torch.tensor([[1, 1], [1, 0]]))
    logits, state, weights = model.decoder.step(second, state, memory, need_weights=True)
    assert state.position == 2
    for row, text, symbols in [(0, "a", [6, 9]), (0, "a", [6, 4]), (1, "abc", [8, 11])]:
        whole = model.decoder(
            torch.tensor([symbols]), *reversed(model.encode(*source(text))), need_weights=True
        )
        column = 1 if symbols[1] == 4 else 0
        torch.testing.assert_close(logits[row, column], whole.logits[0, 1])
        torch.testing.assert_close(weights[row, column, : len(text)], whole.weights[0, 1])


@pytest.mark.parametrize("score", SCORES)
def test_batch_mates_and_padding_change_nothing(score: str) -> None:
    model = make(score)
    rows = ("abcde", "", "ed", "a")
    previous = torch.tensor([[START, 5, 7]])
    together = model(*source(*rows), previous.expand(4, 3))
    for i, row in enumerate(rows):
        alone = model(*source(row), previous)
        torch.testing.assert_close(together[i], alone[0], rtol=1e-12, atol=1e-12)


def test_gradients_reach_every_parameter_and_no_padding() -> None:
    model = make().train()
    symbols, lengths = source("abc", "e")
    model(symbols, lengths, torch.tensor([[START, 5], [START, PAD]])).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    assert model.encoder.embedding.weight.grad[PAD].abs().sum() == 0


def test_dropout_is_off_outside_training() -> None:
    model = make()
    inputs = (*source("abc"), torch.tensor([[START, 5]]))
    assert torch.equal(model(*inputs), model(*inputs))
    model.train()
    assert not torch.equal(model(*inputs), model(*inputs))


def test_odd_sizes_and_unknown_scores_are_refused() -> None:
    with pytest.raises(ValueError, match="hidden_size: expected an even number, got 7"):
        Seq2Seq(5, 5, hidden_size=7)
    with pytest.raises(ValueError, match=r"score: expected one of dot, .*, got 'best'"):
        Seq2Seq(5, 5, score="best")
