from __future__ import annotations

import pytest
import torch
from torch import nn

from luong.toolkit.config import Training
from luong.toolkit.training.optimization import (
    load_optimizer,
    make_average,
    make_optimizer,
    optimizer_tensors,
    rate,
    set_rate,
)


def rates(**settings: object) -> list[float]:
    training = Training(learning_rate=2.0, **settings)
    return [rate(training, done) for done in range(training.updates + 1)]


def test_cosine_rises_then_falls_to_zero() -> None:
    found = rates(updates=110, warmup=10)
    assert found[:10] == pytest.approx([2 * (i + 1) / 11 for i in range(10)])
    assert found[10] == 2
    assert found[60] == pytest.approx(1)  # half of the cosine
    assert found[110] == pytest.approx(0)
    assert sorted(found[10:], reverse=True) == found[10:]


def test_halving_begins_at_an_update_and_goes_on() -> None:
    found = rates(updates=12, warmup=0, schedule="halving", decay_start=5, decay_every=3)
    # the paper: 1.0 for so many updates, then half as much, and again
    assert found == [2] * 4 + [1] * 3 + [0.5] * 3 + [0.25] * 3


def test_constant_stays_after_the_warmup() -> None:
    assert rates(updates=6, warmup=1, schedule="constant") == [1, 2, 2, 2, 2, 2, 2]


def test_sgd_is_plain() -> None:
    layer = nn.Linear(3, 1, bias=False)
    before = layer.weight.detach().clone()
    optimizer = make_optimizer(Training(optimizer="sgd", weight_decay=0.0), layer)
    for step in (1, 2):
        layer.weight.grad = torch.ones(1, 3)
        set_rate(optimizer, 0.25)
        optimizer.step()
        torch.testing.assert_close(layer.weight.detach(), before - 0.25 * step)


def test_weights_decay_with_adamw_alone_of_their_gradient() -> None:
    layer = nn.Linear(3, 1, bias=False)
    before = layer.weight.detach().clone()
    optimizer = make_optimizer(Training(weight_decay=0.5), layer)
    layer.weight.grad = torch.zeros(1, 3)
    set_rate(optimizer, 0.1)
    optimizer.step()
    torch.testing.assert_close(layer.weight.detach(), before * (1 - 0.1 * 0.5))


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_an_optimizer_goes_on_from_its_tensors(name: str) -> None:
    torch.manual_seed(0)
    gradients = torch.randn(4, 1, 3)
    layer, other = nn.Linear(3, 1, bias=False), nn.Linear(3, 1, bias=False)
    settings = Training(optimizer=name)
    optimizer, resumed = make_optimizer(settings, layer), make_optimizer(settings, other)
    for step, gradient in enumerate(gradients):
        if step == 2:
            other.load_state_dict(layer.state_dict())
            tensors = {k: v.clone() for k, v in optimizer_tensors(optimizer).items()}
            load_optimizer(resumed, tensors)
        for each, its in ((layer, optimizer), (other, resumed)):
            each.weight.grad = gradient.clone()
            its.step()
    assert torch.equal(layer.weight, other.weight)


def test_the_average_forgets_its_beginning() -> None:
    layer = nn.Linear(1, 1, bias=False)
    average = make_average(layer, 0.9)
    expected = 0.0
    for count in range(200):
        with torch.no_grad():
            layer.weight.fill_(float(count))
        average.update_parameters(layer)
        decay = min(0.9, (1 + count) / (10 + count)) if count else 0.0
        expected = decay * expected + (1 - decay) * count
    weight = average.module.get_parameter("weight").item()
    assert weight == pytest.approx(expected, rel=1e-5)
    assert weight == pytest.approx(199 - 0.9 / (1 - 0.9), rel=1e-4)
