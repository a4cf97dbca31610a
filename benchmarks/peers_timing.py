"""The part of peers.py that runs in the peers' environment: one contest per peer and size.

Everywhere luong gets the peer's own weights, and computes the same function; that, and every
gradient that both have, is compared with float64 first. "step" is one decoder step: luong from a
prepared memory, SpeechBrain from the keys that it keeps, yoyodyne from the start as it keeps
nothing. "loop" is what a training step does: 50 steps and one backward pass, the source projected
anew.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import importlib.util
import json
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("KERAS_BACKEND", "torch")

import torch
from torch import Tensor, nn

import luong
from timing import both, check, describe, forward, machine, medians, say, version

BATCH, STEPS, LENGTH, WIDTH = 64, 50, 50, 512


class Contest(NamedTuple):
    """Two functions of the same tensors; `exact` is theirs in float64.

    A backward pass goes to the tensors and to the parameters of each.
    """

    what: str
    size: tuple[int, ...]
    ours: Callable[..., Tensor]
    theirs: Callable[..., Tensor]
    exact: Callable[..., Tensor]
    tensors: list[Tensor]
    parameters: tuple[list[Tensor], list[Tensor]] | None = None  # with backward, if given
    steps: int = 1  # in a call
    before: Callable[[], None] = lambda: None  # readies theirs


def draw(*shapes: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def keras() -> list[Contest]:
    """AdditiveAttention: query, key, value as they are, and the v of the formula as `scale`."""
    from keras.layers import AdditiveAttention

    contests = []
    for batch, n, m, d in ((8, 64, 64, 256), (BATCH, 1, LENGTH, WIDTH)):
        tensors = draw((batch, n, d), (batch, m, d), (batch, m, d))
        layer = AdditiveAttention()
        exact = AdditiveAttention(dtype="float64")
        for made in (layer, exact):
            made.build([(batch, n, d), (batch, m, d), (batch, m, d)])
        layer.scale.assign(torch.randn(d) / d**0.5)
        exact.scale.assign(layer.scale.value.detach().double())
        v = layer.scale.value

        def ours(q: Tensor, k: Tensor, x: Tensor, v: Tensor = v) -> Tensor:
            return luong.additive_attention(q, k, x, v).context

        def run(q: Tensor, k: Tensor, x: Tensor, layer: Any = layer) -> Tensor:
            return layer([q, x, k])

        def truth(q: Tensor, k: Tensor, x: Tensor, layer: Any = exact) -> Tensor:
            return layer([q, x, k])

        for parameters in (None, ([v], [v])):
            size = (batch, n, m, d)
            contests.append(Contest("one call", size, ours, run, truth, tensors, parameters))
    return contests


def loops(
    attention: luong.Attention, finish: nn.Module, step: Callable[..., Tensor], layer: nn.Module
) -> list[Contest]:
    """A step and a loop: `step(layer, encoded, state, first)` is the peer's, (batch, d) -> (batch,
    d); `finish` is what the peer does to a context."""
    encoded, states = draw((BATCH, LENGTH, WIDTH), (STEPS, BATCH, WIDTH))
    double = copy.deepcopy(layer).double()
    with torch.no_grad():
        memory = attention.prepare(encoded)
    size = (BATCH, 1, LENGTH, WIDTH)

    def our_step(state: Tensor) -> Tensor:
        return finish(attention.attend(state[:, None], memory).context[:, 0])

    def our_loop(encoded: Tensor, states: Tensor) -> Tensor:
        memory = attention.prepare(encoded)
        steps = [attention.attend(state[:, None], memory).context[:, 0] for state in states]
        return torch.stack([finish(context) for context in steps])

    def loop(encoded: Tensor, states: Tensor, layer: nn.Module = layer) -> Tensor:
        return torch.stack([step(layer, encoded, state, i == 0) for i, state in enumerate(states)])

    def exact_loop(encoded: Tensor, states: Tensor) -> Tensor:
        return loop(encoded, states, double)

    def start() -> None:
        with torch.no_grad():
            step(layer, encoded, states[0], True)

    return [
        Contest(
            "step",
            size,
            our_step,
            lambda state: step(layer, encoded, state, False),
            lambda state: step(double, encoded.double(), state, True),
            [states[0].detach().requires_grad_()],
            before=start,
        ),
        Contest(
            "loop",
            size,
            our_loop,
            loop,
            exact_loop,
            [encoded, states],
            ([*attention.parameters(), *finish.parameters()], list(layer.parameters())),
            steps=STEPS,
        ),
    ]


def luong_like(weight: Tensor, v: Tensor, bias: Tensor) -> luong.Attention:
    """Concat with these weights, in the order [q; k]."""
    score = luong.Concat(WIDTH, WIDTH, WIDTH, bias=True)
    assert score.bias is not None
    with torch.no_grad():
        for own, given in ((score.weight, weight), (score.v, v), (score.bias, bias)):
            own.copy_(given)
    return luong.Attention(score)


def speechbrain() -> list[Contest]:
    """ContentBasedAttention projects the keys once, and projects every context at the end."""
    audio = types.ModuleType("torchaudio")  # imported for sound files, which attention has none of
    vars(audio)["__version__"] = "2.9.0"
    sys.modules.setdefault("torchaudio", audio)
    from speechbrain.nnet.attention import ContentBasedAttention

    layer: Any = ContentBasedAttention(WIDTH, WIDTH, WIDTH, WIDTH)
    lengths = torch.full((BATCH,), LENGTH)
    attention = luong_like(
        torch.cat([layer.mlp_dec.weight, layer.mlp_enc.weight], 1),
        layer.mlp_attn.weight[0],
        layer.mlp_dec.bias + layer.mlp_enc.bias,
    )

    def step(layer: Any, encoded: Tensor, state: Tensor, first: bool) -> Tensor:
        if first:
            layer.reset()
        return layer(encoded, lengths, state)[0]

    return loops(attention, layer.mlp_out, step, layer)


def yoyodyne() -> list[Contest]:
    """Attention projects [k; q] anew for every pair of a key and a step."""
    hollow("yoyodyne", "yoyodyne.models", "yoyodyne.models.modules")
    from yoyodyne.models.modules.attention import Attention

    layer = Attention(WIDTH, WIDTH)
    mask = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    key, query = layer.M.weight.split(WIDTH, 1)
    attention = luong_like(torch.cat([query, key], 1), layer.V.weight[0], layer.M.bias)

    def step(layer: Any, encoded: Tensor, state: Tensor, first: bool) -> Tensor:
        return layer(encoded, state[:, None], mask)[0][:, 0]

    return loops(attention, nn.Identity(), step, layer)


def hollow(*names: str) -> None:
    """Packages whose __init__ is not run: it imports trainers and loggers, not installed here."""
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ImportError(name)
        sys.modules[name] = importlib.util.module_from_spec(spec)


def verify(contest: Contest) -> None:
    """Outputs and gradients."""
    results = []
    for function, dtype in (
        (contest.ours, torch.float32),
        (contest.theirs, torch.float32),
        (contest.exact, torch.float64),
    ):
        tensors = [x.detach().to(dtype).requires_grad_() for x in contest.tensors]
        output = function(*tensors)
        torch.manual_seed(1)
        grad = torch.randn(output.shape).to(dtype)
        results.append([output, *torch.autograd.grad(output, tensors, grad)])
    mine, theirs, exact = results
    check(contest.what, mine, theirs, exact, slack=1e-5)


def run(peer: str, contest: Contest, runs: int) -> dict[str, Any]:
    contest.before()
    verify(contest)
    sides = {"ours": contest.ours, "theirs": contest.theirs}
    if contest.parameters is None:
        calls = {name: forward(side, contest.tensors) for name, side in sides.items()}
    else:
        grad = torch.randn(contest.ours(*contest.tensors).shape)
        calls = {
            name: both(side, contest.tensors, grad, parameters)
            for (name, side), parameters in zip(sides.items(), contest.parameters, strict=True)
        }
    times = medians(calls, runs)
    measure = "forward" if contest.parameters is None else "forward + backward"
    return {
        "peer": peer,
        "version": version(peer),
        "what": contest.what,
        "size": contest.size,
        "pass": measure,
        "runs": runs,
        "ratio": times["theirs"] / times["ours"],
        "seconds": {name: value / contest.steps for name, value in times.items()},
    }


PEERS = {"keras": keras, "speechbrain": speechbrain, "yoyodyne": yoyodyne}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peers", nargs="*", choices=list(PEERS))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    say(describe())
    say(
        f"{'peer':24}{'batch,n,m,d':16}{'what':10}{'pass':20}"
        f"{'luong':>12}{'peer':>13}{'ratio':>9}{'runs':>5}"
    )
    rows = []
    for peer in arguments.peers:
        try:
            contests = PEERS[peer]()
        except ImportError as problem:
            say(f"{peer}: cannot be imported: {problem}")
            continue
        for contest in contests:
            row = run(peer, contest, arguments.runs)
            rows.append(row)
            say(
                f"{peer + ' ' + row['version']:24}{','.join(map(str, row['size'])):16}"
                f"{row['what']:10}{row['pass']:20}{row['seconds']['ours'] * 1e3:9.3f} ms"
                f"{row['seconds']['theirs'] * 1e3:10.3f} ms{row['ratio']:8.2f}x{row['runs']:5}"
            )
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
