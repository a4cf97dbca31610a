"""Optimizers, the learning rate, and the moving average of weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.swa_utils import AveragedModel

from luong.toolkit.config import Training


def make_optimizer(settings: Training, model: nn.Module) -> Optimizer:
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "sgd":
        return SGD(model.parameters(), lr=rate, weight_decay=decay)
    return AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=decay, fused=True)


def set_rate(optimizer: Optimizer, value: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = value


def rate(settings: Training, done: int) -> float:
    """Return the learning rate of the update after `done` updates: see `Training`."""
    if done < settings.warmup:
        return settings.learning_rate * (done + 1) / (settings.warmup + 1)
    return settings.learning_rate * _fall(settings, done)


def _fall(settings: Training, done: int) -> float:
    if settings.schedule == "cosine":
        decay = (done - settings.warmup) / max(1, settings.updates - settings.warmup)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, decay)))
    if settings.schedule == "halving":
        assert settings.decay_start is not None
        assert settings.decay_every is not None
        since = done + 1 - settings.decay_start  # the update itself is done + 1
        return 1.0 if since < 0 else 0.5 ** (1 + since // settings.decay_every)
    return 1.0


def make_average(model: nn.Module, decay: float) -> AveragedModel:
    """Return the exponential moving average of a model's weights; it starts with less decay.

    The decay at the k-th update is min(decay, (1 + k) / (10 + k)), as in TensorFlow's
    ExponentialMovingAverage, so that the first weights, which have learnt nothing, are forgotten.
    """

    def average(averaged: Sequence[Tensor], current: Sequence[Tensor], count: Tensor | int) -> None:
        share = 1 - min(decay, (1 + int(count)) / (10 + int(count)))
        torch._foreach_lerp_(list(averaged), list(current), share)

    return AveragedModel(model, multi_avg_fn=torch.no_grad()(average))


def optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the tensors of the optimizer, from `parameter.name`."""
    return {
        f"{index}.{name}": value
        for index, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
        if value is not None
    }


def expected_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the tensors, on meta, that `optimizer_tensors` gives after the first update."""
    parts = ("exp_avg", "exp_avg_sq") if isinstance(optimizer, AdamW) else ()
    step = {"step": torch.empty((), device="meta")} if parts else {}
    return {
        f"{index}.{name}": value
        for index, p in enumerate(p for group in optimizer.param_groups for p in group["params"])
        for name, value in (step | dict.fromkeys(parts, p.to("meta"))).items()
    }


def load_optimizer(optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    """Restore the state that `optimizer_tensors` returned."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
