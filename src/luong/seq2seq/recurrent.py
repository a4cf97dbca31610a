"""Recurrent layers: PyTorch's LSTM and GRU, over padded sources, over targets, and step by step.

The state of a layer is a tuple of tensors: (h, c) of LSTM cells, (h,) of GRU cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from luong import _check
from luong._mask import positions
from luong._torch_private import scan

Layer = nn.LSTM | nn.GRU
LayerState = tuple[Tensor, ...]
CELLS: dict[str, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}
# whether oneDNN, which computes LSTM layers on the CPU, has bfloat16: it needs AVX-512
_HAS_BFLOAT16 = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
# the amount that padding adds to gates; sigmoids of ±10,000 are exactly 0 and 1, in half types too
_HOLD = {
    nn.LSTM: (-1e4, 1e4, 0.0, 0.0),  # i 0, f 1; g, o
    nn.GRU: (0.0, 1e4, 0.0),  # r; z 1; n
}


class Stack(nn.ModuleList):
    """Stacked recurrent layers; with two directions, each has half of `hidden_size`."""

    def __init__(
        self,
        cell: str,
        count: int,
        input_size: int,
        hidden_size: int,
        *,
        bidirectional: bool = False,
    ) -> None:
        if cell not in CELLS:
            raise ValueError(f"cell: expected one of {', '.join(CELLS)}, got {cell!r}")
        if bidirectional and hidden_size % 2:
            raise ValueError(
                f"hidden_size: expected an even number for two directions, got {hidden_size}"
            )
        super().__init__(
            CELLS[cell](
                hidden_size if i else input_size,
                hidden_size // 2 if bidirectional else hidden_size,
                batch_first=True,
                bidirectional=bidirectional,
            )
            for i in range(_check.integer("layers", count, 1))
        )

    def __iter__(self) -> Iterator[Layer]:
        return (cast(Layer, layer) for layer in super().__iter__())


def run(layer: Layer, inputs: Tensor, state: LayerState) -> tuple[Tensor, LayerState]:
    """Return outputs (rows, n, hidden) of inputs (rows, n, input), and the state after the last.

    State tensors are (rows, hidden). A single step on the CPU uses `advance`: PyTorch's layers
    take two to three times as long to start.
    """
    if _is_refused(layer, inputs):
        with torch.autocast("cpu", enabled=False):
            return run(layer, inputs.float(), tuple(x.float() for x in state))
    if inputs.shape[1] == 1 and inputs.device.type == "cpu":
        (weight, _, bias, _), *_ = layer.all_weights
        state = advance(layer, F.linear(inputs[:, 0], weight, bias), state)
        return state[0].unsqueeze(1), state
    if torch.compiler.is_exporting():
        return _scan(layer, inputs, state)
    first = tuple(x[None].contiguous() for x in state)
    outputs, last = layer(inputs, first if isinstance(layer, nn.LSTM) else first[0])
    return outputs, tuple(x[0] for x in _as_state(last))


def advance(layer: Layer, gates: Tensor, state: LayerState, direction: int = 0) -> LayerState:
    """Return the state (rows, hidden) after one input x, given as `gates` W_ih x + b_ih."""
    hidden = state[0]
    _, weight, _, bias = layer.all_weights[direction]
    recurrent = F.linear(hidden, weight, bias)
    if isinstance(layer, nn.LSTM):
        i, f, g, o = (gates + recurrent).chunk(4, 1)
        cell = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(cell), cell
    (r, z, n), (from_r, from_z, from_n) = gates.chunk(3, 1), recurrent.chunk(3, 1)
    new = torch.tanh(n + torch.sigmoid(r + from_r) * from_n)
    return (new + torch.sigmoid(z + from_z) * (hidden - new),)


def read(layer: Layer, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, LayerState]:
    """Return outputs (batch, m, hidden) of padded inputs (batch, m, input).

    The outputs of a sentence do not depend on the others; those at padding are undefined.

    The state (batch, hidden) is that after the last symbol
    of a sentence and, in the other direction, after its first. `lengths` are at least 1.
    """
    if _is_refused(layer, inputs):
        with torch.autocast("cpu", enabled=False):
            return read(layer, inputs.float(), lengths)
    if torch.compiler.is_exporting():
        return _read_scanned(layer, inputs, lengths)
    if inputs.device.type == "cpu" or torch.compiler.is_compiling():
        outputs, last = _read_held(layer, inputs, lengths)
    else:
        packed = pack_padded_sequence(inputs, lengths.cpu(), batch_first=True, enforce_sorted=False)
        outputs, last = layer(packed)
        outputs, _ = pad_packed_sequence(outputs, batch_first=True, total_length=inputs.shape[1])
    return outputs, tuple(x.transpose(0, 1).flatten(1) for x in _as_state(last))


def _scan(
    layer: Layer,
    inputs: Tensor,
    state: LayerState,
    padding: Tensor | None = None,
    direction: int = 0,
) -> tuple[Tensor, LayerState]:
    """Run a layer in an export, where PyTorch's layers would have a fixed number of steps.

    State and outputs stay as they are at `padding` (rows, n).
    """
    weight, _, bias, _ = layer.all_weights[direction]
    gates = F.linear(inputs, weight, bias).transpose(0, 1)
    if padding is None:
        padding = torch.zeros_like(inputs[..., 0], dtype=torch.bool)

    def step(state: LayerState, given: tuple[Tensor, Tensor]) -> tuple[LayerState, Tensor]:
        gates, padding = given
        found = advance(layer, gates, state, direction)
        kept = tuple(torch.where(padding, old, new) for old, new in zip(state, found, strict=True))
        return kept, kept[0].clone()  # the results of a scan must not share memory

    given = gates, padding.transpose(0, 1).unsqueeze(-1)
    last, outputs = scan(step, tuple(x.clone() for x in state), given)
    return outputs.transpose(0, 1), tuple(last)


def _read_scanned(layer: Layer, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, LayerState]:
    padding = positions(inputs.shape[1], inputs.device) >= lengths[:, None]
    zeros = inputs.new_zeros(inputs.shape[0], layer.hidden_size)
    first = tuple(torch.zeros_like(zeros) for _ in range(2 if isinstance(layer, nn.LSTM) else 1))
    outputs, last = _scan(layer, inputs, first, padding)
    if not layer.bidirectional:
        return outputs, last
    back, first = _scan(layer, inputs.flip(1), first, padding.flip(1), direction=1)
    joined = tuple(torch.cat(pair, 1) for pair in zip(last, first, strict=True))
    return torch.cat([outputs, back.flip(1)], -1), joined


def _is_refused(layer: Layer, inputs: Tensor) -> bool:
    """Return whether oneDNN raises an error for this LSTM layer under autocast.

    The layer is then computed in float32.
    """
    if inputs.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return False
    if inputs.dtype == torch.float64:  # autocast does not change its dtype
        return False
    known = _HAS_BFLOAT16 and torch.get_autocast_dtype("cpu") == torch.bfloat16
    return isinstance(layer, nn.LSTM) and not known


def _read_held(layer: Layer, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | LayerState]:
    """Compute `read` without packing, which is slow on the CPU.

    An added input feature is 1 at padding, where it shuts the gates that would change the state.
    """
    padding = positions(inputs.shape[1], inputs.device) >= lengths[:, None]
    inputs = torch.cat([inputs, padding[..., None].to(inputs.dtype)], -1)
    size = layer.hidden_size
    zeros = inputs.new_zeros(2 if layer.bidirectional else 1, inputs.shape[0], size)
    settings = (True, 1, 0.0, layer.training, layer.bidirectional, True)
    if isinstance(layer, nn.GRU):
        outputs, last = torch.gru(inputs, zeros, _holding(layer), *settings)
        return outputs, last
    outputs, hidden, cell = torch.lstm(inputs, (zeros, zeros), _holding(layer), *settings)
    # padding holds c, but h = o tanh(c) has another o there
    at = (lengths - 1)[:, None, None].expand(-1, 1, size)
    ahead = outputs[..., :size].gather(1, at).transpose(0, 1)
    return outputs, (torch.cat([ahead, hidden[1:]]), cell)


def _holding(layer: Layer) -> list[Tensor]:
    """Return the weights of a layer, with those of the feature that is 1 at padding."""
    weights: list[Tensor] = []
    for own, *others in layer.all_weights:
        gates = own.new_tensor(_HOLD[type(layer)]).repeat_interleave(layer.hidden_size)
        weights += [torch.cat([own, gates[:, None]], 1), *others]
    return weights


def _as_state(state: Tensor | LayerState) -> LayerState:
    return (state,) if isinstance(state, Tensor) else state
