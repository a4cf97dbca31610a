"""The learner: it holds everything that an update of the weights changes, and does the update."""

from __future__ import annotations

import hashlib
import json
import math
import time
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor

from luong.seq2seq import Seq2Seq
from luong.seq2seq.model import PAD
from luong.toolkit.config import Training
from luong.toolkit.errors import ToolkitError
from luong.toolkit.text import batches
from luong.toolkit.text.batches import Batch, Stream
from luong.toolkit.training import processes
from luong.toolkit.training.checkpoints import Checkpoints, TrainingState
from luong.toolkit.training.optimization import (
    expected_tensors,
    load_optimizer,
    make_average,
    make_optimizer,
    optimizer_tensors,
    rate,
    set_rate,
)
from luong.toolkit.training.preparing import Prepared
from luong.toolkit.training.validation import cross_entropy

_CHANGED = (
    "the {} data, or how they are read, have changed since this run began; choose another --out"
)
_LOOK = 10  # updates between two readings of the losses, which wait for the accelerator


class Learner:
    """A model, the optimizer that trains it, and the state of training.

    With several processes each takes its share of every batch. Losses are summed, and divided by
    the number of target symbols in the update, over all processes: one process and the same batches
    give the same update.
    """

    def __init__(
        self, settings: Training, accelerator: Accelerator, model: Seq2Seq, data: Prepared
    ) -> None:
        self.settings, self.accelerator, self.examples = settings, accelerator, data.train
        self.bare = model
        self.model = accelerator.prepare(model)  # under torchrun: DistributedDataParallel
        self.average = make_average(model, settings.average) if settings.average else None
        self.optimizer = make_optimizer(settings, model)
        self.state = TrainingState(data=recognise(data), dev=_hash(data.dev))
        self.stream = self._stream()
        self._loss = torch.zeros((), device=accelerator.device)  # since the last look
        self._tokens, self._began = 0, time.monotonic()

    @property
    def judged(self) -> Seq2Seq:
        """The model whose weights are validated and kept."""
        return self.bare if self.average is None else cast(Seq2Seq, self.average.module)

    def update(self) -> None:
        """Take one step of the optimizer."""
        settings, state = self.settings, self.state
        chunks = [next(self.stream) for _ in range(settings.accumulate)]
        tokens = sum(int(self.examples.lengths[chunk, 1].sum()) for chunk in chunks)
        rank = self.accelerator.process_index
        randomize(self.accelerator.device, settings.seed, state.update, rank)
        for chunk in chunks:
            last = chunk is chunks[-1]
            with nullcontext() if last else self.accelerator.no_sync(self.model):
                self._backward(self._share(chunk), tokens)
        self.accelerator.clip_grad_norm_(self.model.parameters(), settings.clip_norm)
        set_rate(self.optimizer, rate(settings, state.update))
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update_parameters(self.bare)
        state.update += 1
        state.place = self.stream.place
        self._tokens += tokens

    def _backward(self, batch: Batch, tokens: int) -> None:
        with self._precision():
            loss = cross_entropy(self.model, batch, self.settings.label_smoothing)
        # DistributedDataParallel takes the mean over processes; the sum is needed here
        self.accelerator.backward(loss * (self.accelerator.num_processes / tokens))
        self._loss += loss.detach()

    def _share(self, chunk: NDArray[np.int64]) -> Batch:
        """Return the pairs of a batch that this process takes."""
        indices = processes.mine(chunk.tolist())
        batch = batches.collate([self.examples[i] for i in indices or chunk[:1].tolist()])
        if not indices:  # fewer pairs than processes: take a pair that does not count
            batch = batch._replace(target=torch.full_like(batch.target, PAD))
        return batch.to(self.accelerator.device)

    def _precision(self) -> AbstractContextManager[object]:
        enabled = self.settings.precision == "bf16"
        return torch.autocast(self.accelerator.device.type, torch.bfloat16, enabled=enabled)

    @property
    def looks(self) -> bool:
        """Return whether it is time for `look`."""
        every = 1 if self.accelerator.device.type == "cpu" else _LOOK
        return self.state.update % every == 0

    def look(self, votes: list[float]) -> tuple[float, int, float, list[float]]:
        """Return loss per symbol, symbols and seconds since the last look, and the `votes` of all
        processes.
        """
        loss, *votes = processes.total([self._loss.item(), *votes])
        tokens, seconds = self._tokens, time.monotonic() - self._began
        self.state.loss += finite(loss, self.state.update)
        self.state.tokens += tokens
        self.state.seconds += seconds
        self._loss.zero_()
        self.begin()
        return loss / max(tokens, 1), tokens, seconds, votes

    def begin(self) -> None:
        """Count time and symbols from here on."""
        self._tokens, self._began = 0, time.monotonic()

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that a checkpoint holds."""
        return self._parts(optimizer_tensors(self.optimizer))

    def expected(self) -> dict[str, Tensor]:
        """Return tensors with the names, dtypes and shapes of those in a checkpoint."""
        return self._parts(expected_tensors(self.optimizer))

    def _parts(self, optimizer: dict[str, Tensor]) -> dict[str, Tensor]:
        parts = {"model": self.bare.state_dict(), "optimizer": optimizer}
        if self.average is not None:
            parts["average"] = self.average.state_dict()
        return {
            f"{part}.{k}": value for part, values in parts.items() for k, value in values.items()
        }

    def load(self, checkpoints: Checkpoints) -> None:
        """Go on from the last checkpoint."""
        path, state = checkpoints.paths()[-1], checkpoints.state()
        assert state is not None
        if state.data != self.state.data:
            raise ToolkitError(_CHANGED.format("training"))
        if state.dev not in ("", self.state.dev):  # older versions did not keep it
            raise ToolkitError(_CHANGED.format("dev"))
        state, tensors = checkpoints.load(self.expected())
        for name, tensor in tensors.items():
            if not torch.isfinite(tensor).all():
                raise ToolkitError(f"{path}: {name}: expected finite numbers, got NaN or infinity")
        state.dev = self.state.dev
        self.bare.load_state_dict(_part(tensors, "model"))
        load_optimizer(self.optimizer, _part(tensors, "optimizer"))
        if self.average is not None:
            self.average.load_state_dict(_part(tensors, "average"))
        self.state = state
        try:
            self.stream = self._stream()
        except ValueError as error:
            raise ToolkitError(f"{path}: not a checkpoint of these data ({error})") from error

    def _stream(self) -> Stream:
        return Stream(
            self.examples.lengths,
            self.settings.batch_size,
            self.settings.batch_unit,
            seed=self.settings.seed,
            place=self.state.place,
        )


def randomize(device: torch.device, *numbers: int) -> None:
    """Seed torch by some numbers, so that an update does not depend on earlier random draws."""
    seed = int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a hundred times as long
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def recognise(data: Prepared) -> str:
    """Return a hash by which training data, in symbols, are told from other data."""
    return _hash([data.digest, data.source.names, data.target.names])


def _hash(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def finite(loss: float, update: int) -> float:
    """Return `loss`, or end a run that cannot be saved any more."""
    if math.isfinite(loss):
        return loss
    raise ToolkitError(
        f"the loss became {loss} at update {update}; try a smaller --training.learning_rate"
    )


def judged(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights that were validated and kept, among the tensors of a checkpoint."""
    return _part(tensors, "average.module") or _part(tensors, "model")


def _part(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    prefix = f"{name}."
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
