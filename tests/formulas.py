"""The model once more: one sentence, one vector at a time, from the formulas of the papers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from luong.seq2seq import Seq2Seq

Vectors = tuple[Tensor, ...]


class Formulas:
    """A model's weights, by their names, in formulas that know nothing of its code.

    `run` gives logits (n, target symbols) and weights (n, m), and leaves the decoder's last states
    in `states`, and in `posterior` the weights given the symbols `following` (n, m). `drop` is what
    dropout does.
    """

    def __init__(
        self, model: Seq2Seq, drop: Callable[[Tensor], Tensor] = lambda x: x, **shape: Any
    ) -> None:
        self.p = {name: parameter.detach() for name, parameter in model.named_parameters()}
        self.drop = drop
        self.shape: dict[str, Any] = {
            "cell": "lstm",
            "encoder_layers": 1,
            "decoder_layers": 1,
            "bidirectional": True,
            "score": "general",
            "window": "global",
        } | shape

    def run(
        self, source: list[int], previous: list[int], following: list[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        keys, last = self.encoder(source)
        keys = keys if self.shape.get("attend_end") else keys[:-1]
        self.states = self.bridge(last)
        fed = torch.zeros_like(self.states[0][0])  # h~ of step 0
        logits, weights, posterior = [], [], []
        for t, symbol in enumerate(previous):
            x = self.drop(self.p["decoder.embedding.weight"][symbol])
            x = torch.cat([x, fed]) if self.shape.get("input_feeding") else x
            for i in range(self.shape["decoder_layers"]):
                self.states[i] = self.cell(f"decoder.layers.{i}", "", x, self.states[i])
                x = self.drop(self.states[i][0])
            attended = self.weights(x, keys, t)
            context = sum((a * key for a, key in zip(attended, keys, strict=True)))
            each = [self.predict(key, x)[1].softmax(0) for key in keys]
            fed, found = self.predict(context, x)
            logits.append(found)
            weights.append(torch.stack(attended))
            if following:  # Bayes' rule
                y = following[t]
                joint = [a * p[y] for a, p in zip(attended, each, strict=True)]
                posterior.append(torch.stack(joint) / (sum(joint) or 1.0))
        self.posterior = torch.stack(posterior) if following else None
        return torch.stack(logits), torch.stack(weights)

    def predict(self, context: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Equations 5 and 6: h~ and the logits."""
        h = torch.tanh(self.p["decoder.attentional.weight"] @ torch.cat([context, hidden]))
        tied = self.shape.get("tied_embeddings")
        output = self.p[f"decoder.{'embedding' if tied else 'output'}.weight"]
        return h, output @ self.drop(h)

    def encoder(self, source: list[int]) -> tuple[list[Tensor], list[Vectors]]:
        """States in source order, and the last state of each layer."""
        order = list(range(len(source)))
        if self.shape.get("reverse_source"):
            order = [*reversed(order[:-1]), order[-1]]
        rows = [self.p["encoder.embedding.weight"][source[j]] for j in order]
        last = []
        for i in range(self.shape["encoder_layers"]):
            rows = [self.drop(x) for x in rows]
            outputs, final = self.pass_over(f"encoder.layers.{i}", "", rows)
            if self.shape["bidirectional"]:
                back, first = self.pass_over(f"encoder.layers.{i}", "_reverse", rows[::-1])
                outputs = [torch.cat(pair) for pair in zip(outputs, back[::-1], strict=True)]
                final = tuple(torch.cat(pair) for pair in zip(final, first, strict=True))
            rows = outputs
            last.append(final)
        return [rows[order.index(j)] for j in range(len(source))], last

    def pass_over(
        self, layer: str, direction: str, inputs: list[Tensor]
    ) -> tuple[list[Tensor], Vectors]:
        zeros = torch.zeros_like(self.p[f"{layer}.weight_hh_l0{direction}"][0])
        state: Vectors = (zeros,) * (2 if self.shape["cell"] == "lstm" else 1)
        outputs = []
        for x in inputs:
            state = self.cell(layer, direction, x, state)
            outputs.append(state[0])
        return outputs, state

    def cell(self, layer: str, direction: str, x: Tensor, state: Vectors) -> Vectors:
        """As PyTorch documents its LSTM and GRU."""
        names = ("weight_ih", "bias_ih", "weight_hh", "bias_hh")
        w, b, u, c = (self.p[f"{layer}.{name}_l0{direction}"] for name in names)
        from_x, from_h = w @ x + b, u @ state[0] + c
        if self.shape["cell"] == "lstm":
            i, f, g, o = (from_x + from_h).chunk(4)
            cell = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
            return torch.sigmoid(o) * torch.tanh(cell), cell
        (r, z, n), (r_h, z_h, n_h) = from_x.chunk(3), from_h.chunk(3)
        r, z = torch.sigmoid(r + r_h), torch.sigmoid(z + z_h)
        return ((1 - z) * torch.tanh(n + r * n_h) + z * state[0],)

    def bridge(self, last: list[Vectors]) -> list[Vectors]:
        """The top layers meet; what the decoder has below them starts from zeros."""
        count = self.shape["decoder_layers"]
        matched = last[-count:] if self.shape.get("bridge", True) else []
        states = []
        for i, state in enumerate(matched):
            if f"bridge.layers.{i}.0.weight" in self.p:
                mapped = [
                    self.p[f"bridge.layers.{i}.{kind}.weight"] @ x
                    + self.p[f"bridge.layers.{i}.{kind}.bias"]
                    for kind, x in enumerate(state)
                ]
                state = (torch.tanh(mapped[0]), *mapped[1:])
            states.append(state)
        zeros = (torch.zeros_like(self.p["decoder.layers.0.weight_hh_l0"][0]),) * len(last[0])
        return [zeros] * (count - len(states)) + states

    def weights(self, h: Tensor, keys: list[Tensor], t: int) -> list[Tensor]:
        """Sections 3.1 and 3.2."""
        m, d, window = len(keys), self.shape.get("half_width", 0), self.shape["window"]
        live, factors = range(m), [h.new_ones(())] * m
        if window == "local_m":
            centre = min(t, m - 1)
            live = range(max(0, centre - d), min(m, centre + d + 1))
        elif window == "local_p":
            name = "decoder.attention.window"
            inner = self.p[f"{name}.v"] @ torch.tanh(self.p[f"{name}.weight"] @ h)
            p_t = m * torch.sigmoid(inner)
            centre = min(math.floor(p_t), m - 1)
            live = range(max(0, centre - d), min(m, centre + d + 1))
            factors = [torch.exp(-((s - p_t) ** 2) / (2 * (d / 2) ** 2)) for s in range(m)]
        scores = {s: self.score(h, keys[s], s) for s in live}
        scores = {s: score for s, score in scores.items() if score is not None}
        total = sum((torch.exp(score) for score in scores.values()), h.new_zeros(()))
        zero = h.new_zeros(())
        return [
            torch.exp(scores[s]) / total * factors[s] if s in scores else zero for s in range(m)
        ]

    def score(self, h: Tensor, key: Tensor, s: int) -> Tensor | None:
        """Equations 7 and 8."""
        name = "decoder.attention.score"
        factor = self.p.get(f"{name}.gain", 1.0)
        name = f"{name}.score" if f"{name}.gain" in self.p else name
        kind = self.shape["score"]
        if kind == "none":
            return None
        if kind in ("dot", "scaled_dot"):
            return factor * (key @ h) / (math.sqrt(len(h)) if kind == "scaled_dot" else 1)
        weight = self.p[f"{name}.weight"]
        if kind == "general":
            return factor * (key @ weight @ h)
        if kind == "concat":
            return factor * (self.p[f"{name}.v"] @ torch.tanh(weight @ torch.cat([h, key])))
        return factor * (weight[s] @ h) if s < len(weight) else None
