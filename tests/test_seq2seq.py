"""The model, against its formulas written as loops over single vectors, and against itself."""

from __future__ import annotations

import itertools
import math
from dataclasses import FrozenInstanceError
from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from formulas import Formulas
from luong.seq2seq import Seq2Seq, Settings, build
from luong.seq2seq.dropout import Dropout
from luong.seq2seq.model import END, PAD, START
from luong.seq2seq.recurrent import Stack, read

SCORES = ("dot", "scaled_dot", "general", "concat", "location")
WINDOWS: tuple[dict[str, Any], ...] = (
    {},
    {"window": "local_m", "half_width": 1},
    {"window": "local_p", "half_width": 2},
)
READERS: tuple[dict[str, bool], ...] = (
    {"bidirectional": True},
    {"bidirectional": False},
    {"bidirectional": False, "reverse_source": True},
)
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def make(score: str = "general", seed: int = 0, **shape: Any) -> Seq2Seq:
    torch.manual_seed(seed)
    sizes = {"embedding_size": 5, "hidden_size": 6, "location_length": 4, "dropout": 0.5} | shape
    model = build(Settings(score=score, **sizes), 11, 13).double()
    for parameter in model.parameters():  # large weights: every part matters
        torch.nn.init.uniform_(parameter, -1, 1)
    return model.eval()


def source(*rows: str) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows)) + 1
    symbols = [[ord(c) - ord("a") + 4 for c in row] + [END] for row in rows]
    padded = [row + [PAD] * (longest - len(row)) for row in symbols]
    return torch.tensor(padded), torch.tensor([len(row) for row in rows])


@pytest.mark.parametrize("feeding", [False, True])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("score", SCORES)
@torch.no_grad()
def test_logits_and_weights_are_those_of_the_formulas(
    score: str, window: dict[str, Any], feeding: bool
) -> None:
    symbols, lengths = source("abcde")
    previous = [START, 5, 7, 4]
    for cell, layers, reader in itertools.product(
        ("lstm", "gru"), ((1, 1), (2, 2), (1, 3), (3, 1)), READERS
    ):
        shape = {
            "cell": cell,
            "encoder_layers": layers[0],
            "decoder_layers": layers[1],
            "input_feeding": feeding,
            **window,
            **reader,
        }
        model = make(score, **shape)
        memory, state = model.encode(symbols, lengths)
        step = model.decoder(torch.tensor([previous]), state, memory, need_weights=True)
        logits, weights = Formulas(model, score=score, **shape).run(symbols[0].tolist(), previous)
        torch.testing.assert_close(step.logits[0], logits, **EXACT)
        torch.testing.assert_close(step.weights[0], weights, **EXACT)
        torch.testing.assert_close(
            model(symbols, lengths, torch.tensor([previous]))[0], logits, **EXACT
        )


@pytest.mark.parametrize(
    "shape",
    [
        {"attend_end": True},
        {"attend_end": True, "bidirectional": False, "reverse_source": True},
        {"attend_end": True, "window": "local_p", "half_width": 1},
        {"bridge": False},
        {
            "bridge": False,
            "cell": "gru",
            "encoder_size": 4,
            "encoder_layers": 2,
            "decoder_layers": 2,
        },
        {"encoder_size": 4, "score": "concat"},
        {"encoder_size": 5, "bidirectional": False, "input_feeding": True},
        {"tied_embeddings": True, "embedding_size": 6},
        {"learned_scale": True, "window": "local_m", "half_width": 1},
        {"score": "none"},
        {"score": "none", "input_feeding": True, "attend_end": True},
    ],
)
@torch.no_grad()
def test_options_are_those_of_the_formulas(shape: dict[str, Any]) -> None:
    model = make(**shape)
    symbols, lengths = source("abcd")
    previous = [START, 5, 7]
    logits = model(symbols, lengths, torch.tensor([previous]))[0]
    expected, _ = Formulas(model, **shape).run(symbols[0].tolist(), previous)
    torch.testing.assert_close(logits, expected, **EXACT)


@pytest.mark.parametrize("feeding", [False, True])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("score", ["general", "location", "none"])
@torch.no_grad()
def test_weights_given_what_follows_are_by_the_rule_of_bayes(
    score: str, window: dict[str, Any], feeding: bool
) -> None:
    if score == "none" and window:
        return
    symbols, lengths = source("abcdefg", "ab")
    rows = torch.tensor([[START, 5, 7, 4, 9], [START, 9, 8, 9, 9]])
    previous, following = rows[:, :-1], rows[:, 1:]
    model = make(score, input_feeding=feeding, **window)
    memory, state = model.encode(symbols, lengths)
    step = model.decoder(previous, state, memory, given=following)
    assert step.weights is not None
    for i, m in enumerate(lengths.tolist()):
        oracle = Formulas(model, score=score, input_feeding=feeding, **window)
        own = symbols[i, : m + 1].tolist()
        logits, _ = oracle.run(own, previous[i].tolist(), following[i].tolist())
        torch.testing.assert_close(step.weights[i, :, :m], oracle.posterior, **EXACT)
        assert not step.weights[i, :, m:].any()
        torch.testing.assert_close(step.logits[i], logits, **EXACT)


@pytest.mark.parametrize("feeding", [False, True])
@torch.no_grad()
def test_dropout_is_on_vertical_connections_alone(
    feeding: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all that can be dropped gone, the states still go on from step to step."""
    monkeypatch.setattr(Dropout, "forward", lambda self, x: 0 * x)
    shape: dict[str, Any] = {"encoder_layers": 2, "decoder_layers": 2, "input_feeding": feeding}
    model = make(**shape)
    memory, state = model.encode(*source("abc"))
    step = model.decoder(torch.tensor([[START, 5, 7]]), state, memory)
    assert not step.logits.any()
    oracle = Formulas(model, drop=lambda x: 0 * x, **shape)
    oracle.run(source("abc")[0][0].tolist(), [START, 5, 7])
    for tensor, kind in zip(step.state.layers, zip(*oracle.states, strict=True), strict=True):
        torch.testing.assert_close(tensor[:, 0, 0], torch.stack(kind), **EXACT)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("feeding", [False, True])
@pytest.mark.parametrize("score", SCORES)
@torch.no_grad()
def test_steps_of_reordered_hypotheses_equal_their_symbols_in_a_row(
    score: str, feeding: bool, window: dict[str, Any]
) -> None:
    for cell in ("lstm", "gru"):
        model = make(score, cell=cell, input_feeding=feeding, decoder_layers=2, **window)
        memory, state = model.encode(*source("abc", "de", "a"))
        state = state.reorder(torch.zeros(3, 2, dtype=torch.long))  # two hypotheses each
        kept, swapped = torch.tensor([0, 2]), torch.tensor([1, 0])
        memory, state = memory.select(kept), state.select(kept)
        first, second = torch.tensor([[7, 8], [5, 6]]), torch.tensor([[9, 4], [11, 12]])
        state = model.decoder.step(first, state, memory).state
        memory, state = memory.select(swapped), state.select(swapped)
        state = state.reorder(torch.tensor([[1, 1], [1, 0]]))
        logits, state, weights = model.decoder.step(second, state, memory, need_weights=True)
        assert state.position == 2
        for row, column, text, read_ in [
            (0, 0, "a", [6, 9]),
            (0, 1, "a", [6, 4]),
            (1, 0, "abc", [8, 11]),
            (1, 1, "abc", [7, 12]),
        ]:
            whole = model.decoder(
                torch.tensor([read_]), *reversed(model.encode(*source(text))), need_weights=True
            )
            torch.testing.assert_close(logits[row, column], whole.logits[0, 1], **EXACT)
            assert weights is not None
            assert whole.weights is not None
            torch.testing.assert_close(
                weights[row, column, : len(text)], whole.weights[0, 1], **EXACT
            )


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("cell", ["lstm", "gru"])
@torch.no_grad()
def test_batch_mates_and_padding_change_nothing(cell: str, reader: dict[str, bool]) -> None:
    rows = ("abcde", "", "ed", "a")
    previous = torch.tensor([[START, 5, 7]])
    symbols, lengths = source(*rows)
    wide = torch.cat([symbols, torch.full((4, 3), PAD)], 1)
    for score, window, feeding in itertools.product(SCORES, WINDOWS, (False, True)):
        model = make(score, cell=cell, input_feeding=feeding, encoder_layers=2, **window, **reader)
        together = model(wide, lengths, previous.expand(4, 3))
        for i, row in enumerate(rows):
            alone = model(*source(row), previous)
            torch.testing.assert_close(together[i], alone[0], **EXACT)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_reading_equals_packed_sequences_and_so_do_gradients(
    cell: str, bidirectional: bool
) -> None:
    torch.manual_seed(0)
    (layer,) = Stack(cell, 1, 5, 6, bidirectional=bidirectional).double()
    inputs = torch.randn(4, 7, 5, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([4, 1, 7, 6])
    packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
    outputs, last = layer(packed)
    outputs, _ = pad_packed_sequence(outputs, batch_first=True)
    last = last if cell == "lstm" else (last,)
    theirs = [outputs, *(x.transpose(0, 1).flatten(1) for x in last)]
    ours, state = read(layer, inputs, lengths)
    live = (torch.arange(7) < lengths[:, None])[..., None]
    results = [torch.where(live, ours, 0), *state]
    wanted = [inputs, *layer.parameters()]
    grads = []
    for found in (results, theirs):
        loss = sum((x * torch.arange(1, x.numel() + 1).view(x.shape)).sin().sum() for x in found)
        grads.append(torch.autograd.grad(loss, wanted, retain_graph=True))
    torch.testing.assert_close(results, theirs, **EXACT)
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_reversal_is_undone_before_attention() -> None:
    forwards = make(bidirectional=False)
    backwards = make(bidirectional=False, reverse_source=True)  # with the same weights
    ahead, _ = forwards.encoder(*source("cba", "de"))
    back, _ = backwards.encoder(*source("abc", "ed"))
    for row, length in ((0, 3), (1, 2)):
        torch.testing.assert_close(back[row, :length], ahead[row, :length].flip(0), **EXACT)
        torch.testing.assert_close(back[row, length], ahead[row, length], **EXACT)  # of END


@pytest.mark.parametrize("feeding", [False, True])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("score", SCORES)
def test_gradients_reach_every_parameter_and_no_padding(
    score: str, window: dict[str, Any], feeding: bool
) -> None:
    model = make(
        score,
        encoder_layers=2,
        decoder_layers=2,
        learned_scale=True,
        input_feeding=feeding,
        dropout=0.0,
        **window,
    ).train()
    model(*source("abcd", "ef"), torch.tensor([[START, 5], [START, PAD]])).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    for side in (model.encoder, model.decoder):
        gradient = side.embedding.weight.grad
        assert gradient is not None
        assert gradient[PAD].abs().sum() == 0


@pytest.mark.parametrize("feeding", [False, True])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype, cell: str, feeding: bool) -> None:
    symbols, lengths = source("abcd", "ef")
    previous = torch.tensor([[START, 5, 6], [START, 4, PAD]])
    for reader, score in itertools.product(READERS, SCORES):
        torch.manual_seed(0)
        sizes = {"embedding_size": 16, "hidden_size": 16, "cell": cell, "dropout": 0.0}
        model = build(Settings(score=score, input_feeding=feeding, **sizes, **reader), 11, 13)
        with torch.autocast("cpu", dtype):
            logits = model(symbols, lengths, previous)
        torch.testing.assert_close(
            logits.float(), model(symbols, lengths, previous), rtol=0, atol=0.02
        )
        logits.float().logsumexp(-1).sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_dropout_is_off_outside_training() -> None:
    model = make()
    inputs = (*source("abc"), torch.tensor([[START, 5]]))
    assert torch.equal(model(*inputs), model(*inputs))
    model.train()
    assert not torch.equal(model(*inputs), model(*inputs))


@pytest.mark.parametrize("p", [0.1, 0.5, 1 - 1e-9])
def test_dropout_drops_the_share_it_should_and_keeps_the_mean(p: float) -> None:
    torch.manual_seed(0)
    dropout, x = Dropout(p), torch.ones(999, 1001, requires_grad=True)
    y = dropout(x)
    p = round(p * 65536) / 65536 if p < 0.9 else 65535 / 65536
    count = x.numel()
    share = (y == 0).sum().item() / count
    assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / count)
    torch.testing.assert_close(y[y != 0], torch.full_like(y[y != 0], 1 / (1 - p)))
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())  # what was dropped learns nothing, the rest learns more
    torch.manual_seed(0)
    assert torch.equal(dropout(x), y)  # the same seed drops the same
    assert not torch.equal(dropout(x), y)


def test_neighbours_are_dropped_independently() -> None:
    torch.manual_seed(0)
    kept = (Dropout(0.5)(torch.ones(1 << 20)) != 0).double() - 0.5
    for distance in (1, 2, 3, 4):
        correlation = 4 * (kept[distance:] * kept[:-distance]).mean().item()
        assert abs(correlation) < 5 / 1024


def test_uniform_start() -> None:
    model = build(Settings(64, 64, learned_scale=True, init_range=0.1), 11, 13)
    for name, parameter in model.named_parameters():
        if name.endswith("gain"):
            assert parameter == 1
        else:
            assert 0.09 < parameter.abs().max() <= 0.1, name
    for side in (model.encoder, model.decoder):
        assert not side.embedding.weight[PAD].any()


def test_tied_embeddings_are_one_parameter() -> None:
    model, tied = (build(Settings(8, 8, tied_embeddings=tied), 11, 13) for tied in (False, True))
    fewer = set(model.state_dict()) - set(tied.state_dict())
    assert fewer == {"decoder.output.weight"}
    assert not set(tied.state_dict()) - set(model.state_dict())


def test_one_direction_of_the_right_size_needs_no_bridge() -> None:
    assert not list(make(bidirectional=False).bridge.parameters())
    shapes = [tuple(x.shape) for x in make(encoder_layers=2, decoder_layers=3).bridge.parameters()]
    assert shapes == [(6, 6), (6,)] * 4  # h and c of two layers
    assert not list(make(bridge=False).bridge.parameters())


def test_settings_cannot_change() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().score = "dot"  # type: ignore[misc]


@pytest.mark.parametrize("field", ["cell", "score", "window"])
def test_every_name_of_a_setting_is_a_model(field: str) -> None:
    names = get_args(get_type_hints(Settings)[field])
    models = [build(Settings(4, 6, half_width=2, **{field: name}), 5, 5) for name in names]
    assert len({(str(model), model.attends) for model in models}) == len(names) > 1


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"hidden_size": 7}, "hidden_size: expected an even number for two directions, got 7"),
        ({"score": "best"}, r"score: expected one of none, dot, .*, got 'best'"),
        ({"cell": "rnn"}, "cell: expected one of lstm, gru, got 'rnn'"),
        ({"window": "local"}, "window: expected one of global, local_m, local_p, got 'local'"),
        ({"window": "local_m"}, "half_width: expected a whole number, 0 or more, got None"),
        ({"window": "local_p", "half_width": 0}, "half_width: expected .* 1 or more, got 0"),
        ({"encoder_layers": 0}, "layers: expected a whole number, 1 or more, got 0"),
        ({"decoder_layers": 0}, "layers: expected a whole number, 1 or more, got 0"),
        ({"score": "dot", "encoder_size": 8}, "encoder_size: expected .* 256 .* dot, got 8"),
        ({"tied_embeddings": True}, "tied_embeddings: expected embedding_size = hidden_size, .*"),
        ({"dropout": 1.0}, r"dropout: expected a probability in \[0, 1\), got 1.0"),
    ],
)
def test_shapes_that_cannot_be_are_refused(shape: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(Settings(**shape), 5, 5)
