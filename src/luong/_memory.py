"""The memory of a source: what queries attend to, step by step."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from luong import _check


class Memory(NamedTuple):
    """A source, prepared once for queries to attend to. Hidden positions hold zeros.

    `Attention.prepare` makes it once for a source; `attend` reads it at every decoder step and
    never changes it. A part may be replaced, `memory._replace(mask=mask)`: the key by what
    `prepare` would have made of it, the mask by the whole one, `lengths` included. What had been
    worked out from the old part is dropped, and each `attend` works it out again.

    Attributes:
        key: (*batch, m, ...), as the score wants it: Wᵀk of `General`, W_k k of `Concat`, else k.
        value: (*batch, m, d_v).
        mask: bool (*batch, n or 1, m). True: the query may attend to the key. None: to every key.
        lengths: (*batch, 1, 1), the number of keys of each sentence, for windows. None: m.
        prepared: results worked out from the fields above; for this package only.
    """

    key: Tensor
    value: Tensor
    mask: Tensor | None = None
    lengths: Tensor | None = None
    prepared: Prepared | None = None

    def select(self, index: Tensor) -> Memory:
        """Return the memory of some sentences of the batch, when others are done.

        Hypotheses of one sentence need no copy of its memory: they may stand on the query axis.

        Args:
            index: integers, or a bool for each row of the first batch dimension.

        Returns:
            A memory of these rows, in their order.

        Raises:
            ValueError: this memory has no batch.
        """
        sides = [x for x in (self.key, self.value, self.mask) if x is not None]
        rank = max(x.ndim for x in sides)
        rows = max(x.shape[0] for x in sides if x.ndim == rank)
        if rank < 3:
            raise ValueError(
                f"select: this memory has no batch, its value is {_check.shape(self.value)}"
            )

        def rows_of(x: Tensor) -> Tensor:  # what is broadcast over this dimension stays as it is
            return x if x.ndim < rank or x.shape[0] != rows else x[index]

        found, mask = _unchanged(self), None if self.mask is None else rows_of(self.mask)
        key_terms = found.key_terms
        if key_terms is not None:  # its batch is flat: elsewhere `attend` makes it again
            flat = rank == 3 and key_terms[0].shape[0] == rows
            key_terms = tuple(x[index] for x in key_terms) if flat else None
            if key_terms is not None and not torch.compiler.is_compiling():
                key_terms = Terms.of(key_terms, mask)
        return remember(
            rows_of(self.key),
            rows_of(self.value),
            mask,
            None if self.lengths is None else rows_of(self.lengths),
            empty=None if found.empty is None else rows_of(found.empty),
            upcast=None
            if found.upcast is None
            else (rows_of(found.upcast[0]), rows_of(found.upcast[1])),
            key_terms=key_terms,
            given=found.given,
            stepwise=found.step is not None,
        )

    def detach(self) -> Memory:
        """Return the same memory without its graph, for truncated backpropagation."""
        found = _unchanged(self)
        return remember(
            self.key.detach(),
            self.value.detach(),
            self.mask,
            self.lengths,
            empty=found.empty,
            upcast=None
            if found.upcast is None
            else (found.upcast[0].detach(), found.upcast[1].detach()),
            key_terms=found.key_terms,
            given=found.given,
            stepwise=found.step is not None,
        )

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Memory:
        """Return the memory on another device, with key and value in another floating dtype.

        Args:
            device: where to. Default: it stays.
            dtype: a floating dtype for key and value. Default: they keep theirs.
        """
        key, value = (x.to(device=device, dtype=dtype) for x in (self.key, self.value))
        mask, lengths = (None if x is None else x.to(device) for x in (self.mask, self.lengths))
        if key is self.key and value is self.value and mask is self.mask:
            return self
        found = _unchanged(self)
        empty = None if found.empty is None else found.empty.to(device)
        return remember(key, value, mask, lengths, empty=empty, given=found.given)

    def __reduce__(self) -> tuple[Any, ...]:
        return Memory, (self.key, self.value, self.mask, self.lengths)


class Attended(NamedTuple):
    """The result of attention: a pair that can be unpacked.

    Attributes:
        context: (*batch, n, d_v), the weighted sum of the values for each query.
        weights: (*batch, n, m), or None where they were not asked for.
    """

    context: Tensor
    weights: Tensor | None


@final
class Terms(tuple[Tensor, ...]):
    """Tensors that a kernel made of the keys and of the mask, or None, for all calls."""

    mask: Tensor | None = None
    arrays: Any = None  # the same as the kernel takes them, once it has been called

    @classmethod
    def of(cls, terms: Iterable[Tensor], mask: Tensor | None) -> Terms:
        """Return the terms with a note of the mask."""
        found = cls(terms)
        found.mask = mask
        return found

    def covers(self, mask: Tensor) -> bool:
        """Return whether they leave out what `mask` does: it is theirs, one row for all queries."""
        return mask is self.mask and mask.shape[-2] == 1


_FEW = 16  # queries of a sentence: those of one decoder step, a beam's


class Step(NamedTuple):
    """The facts by which a few queries may attend to a prepared memory without any more checks.

    key and value are (b, m, ...), of one plain dtype, on the CPU; no query has nothing to attend.
    Kernels get it only with queries for which `Prepared.fits`: see `without_step`.
    """

    batch: int  # b
    dtype: torch.dtype
    bias: Tensor | None  # (b, 1, m): 0 where queries may attend, else -inf. None: zeros

    @classmethod
    def of(
        cls, key: Tensor, value: Tensor, mask: Tensor | None, empty: Tensor | None
    ) -> Step | None:
        """Return the facts about the parts of a memory, or None if every call has to check them."""
        batch, m = key.shape[0], key.shape[-2]
        if (
            torch.compiler.is_compiling()
            or empty is not None
            or key.dtype not in (torch.float32, torch.float64)
            or not all(type(x) in (Tensor, nn.Parameter) and x.is_cpu for x in (key, value))
            or key.ndim != 3
            or value.ndim != 3
            or value.shape[0] != batch
            or 0 in (batch, m, value.shape[2], key.shape[2])
            or (mask is not None and (mask.shape != (batch, 1, m) or type(mask) is not Tensor))
        ):
            return None
        bias = None if mask is None else key.new_zeros(mask.shape).masked_fill_(~mask, -math.inf)
        return cls(batch, key.dtype, bias)


@final
class Prepared:
    """The results computed from the parts of a memory, and those parts. It never changes.

    They hold for these very tensors only: functions that go through a memory tensor by tensor
    (pytrees, pickle) leave them out.
    """

    def __init__(
        self,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        empty: Tensor | None = None,
        upcast: tuple[Tensor, Tensor] | None = None,
        key_terms: tuple[Tensor, ...] | None = None,
        step_gradients: Any = None,
        given: tuple[Given, ...] = (),
        step: Step | None = None,
    ) -> None:
        self.key, self.value, self.mask = key, value, mask
        self.empty = empty  # bool (*batch, n or 1, 1), True: nothing to attend. None: no such row
        self.upcast = upcast  # key and value in float32, where a kernel computes in that
        self.key_terms = key_terms  # terms of the keys that a kernel uses in each call
        self.step_gradients = (
            step_gradients  # the place where steps leave the gradients of key and value
        )
        self.given = given  # the tensors of the caller, where gradients are taken
        self.step = step  # None: every call checks its arguments
        self.versions = None if torch.compiler.is_compiling() else self._versions()

    def _versions(self) -> tuple[int | None, ...]:
        return version(self.key), version(self.value), version(self.mask)

    def about(self, memory: Memory) -> bool:
        """Return whether the parts of `memory` are these very tensors."""
        return self.key is memory.key and self.value is memory.value and self.mask is memory.mask

    def fits(self, query: Tensor, memory: Memory) -> bool:
        """Return whether the memory is ready for this query, but for a check of d_q."""
        step = self.step
        if step is None or torch.compiler.is_compiling() or type(query) is not Tensor:
            return False
        shape = query.shape
        return (
            len(shape) == 3
            and shape[0] == step.batch
            and shape[1] <= _FEW
            and query.dtype == step.dtype
            and query.is_cpu
            and self.about(memory)
            and self.versions == self._versions()
            and not torch.is_autocast_enabled("cpu")
            and not (torch.is_grad_enabled() and self._given_changed())
        )

    def _given_changed(self) -> bool:
        return any([each.changed() for each in self.given])  # noqa: C419 (a generator is slower)

    def changed(self) -> list[str]:
        """Return the names of the parts that were changed in place since then."""
        if self.versions is None or (now := self._versions()) == self.versions:
            return []
        parts = zip(("key", "value", "mask"), self.versions, now, strict=True)
        return [name for name, then, since in parts if then != since]


class Given(NamedTuple):
    """A tensor that a memory was made of, which it does not keep alive."""

    name: str
    tensor: weakref.ref[Tensor]
    version: int | None

    @classmethod
    def of(cls, tensors: dict[str, Tensor | None]) -> tuple[Given, ...]:
        return tuple(
            cls(name, weakref.ref(x), version(x)) for name, x in tensors.items() if x is not None
        )

    def changed(self) -> bool:
        tensor = self.tensor()
        return tensor is not None and version(tensor) != self.version


def version(tensor: Tensor | None) -> int | None:
    """Return a number that changes whenever the tensor does, or None if it has no such number."""
    return None if tensor is None or tensor.is_inference() else tensor._version


def known(memory: Memory) -> Prepared:
    """Return the results that hold for the parts of `memory`, without those of replaced parts."""
    found, mask = memory.prepared, memory.mask
    if found is not None and found.mask is mask:
        if found.key is memory.key and found.value is memory.value:
            return found
        empty = found.empty
    else:
        empty = None if mask is None else ~mask.any(-1, keepdim=True)
    return Prepared(memory.key, memory.value, mask, empty)


def _unchanged(memory: Memory) -> Prepared:
    """Return the same, without the results from parts that were changed in place."""
    found = memory.prepared
    if found is None or torch.compiler.is_compiling() or not found.changed():
        return known(memory)
    found, given = known(memory._replace(prepared=None)), found.given
    return Prepared(memory.key, memory.value, memory.mask, found.empty, given=given)


def remember(
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    *,
    empty: Tensor | None,
    upcast: tuple[Tensor, Tensor] | None = None,
    key_terms: tuple[Tensor, ...] | None = None,
    step_gradients: Any = None,
    given: tuple[Given, ...] = (),
    stepwise: bool = False,
) -> Memory:
    """Return a memory of these parts, with the results that were worked out from them.

    `stepwise`: it is going to be read in many small calls.
    """
    step = Step.of(key, value, mask, empty) if stepwise else None
    prepared = Prepared(key, value, mask, empty, upcast, key_terms, step_gradients, given, step)
    return Memory(key, value, mask, lengths, prepared)


def made_of(memory: Memory, given: dict[str, Tensor | None]) -> Memory:
    """Return the memory, ready for steps.

    It has a note of the tensors it was made of, where gradients are taken.
    """
    found, noted = known(memory), torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return remember(
        *memory[:4],
        empty=found.empty,
        upcast=found.upcast,
        key_terms=found.key_terms,
        step_gradients=found.step_gradients,
        given=Given.of(given) if noted else (),
        stepwise=True,
    )


def without_step(memory: Memory) -> Memory:
    """Return the memory for a query that it is not ready for."""
    found = memory.prepared
    if found is None or found.step is None:
        return memory
    return remember(
        *memory[:4],
        empty=found.empty,
        upcast=found.upcast,
        key_terms=found.key_terms,
        step_gradients=found.step_gradients,
        given=found.given,
    )


def masked(memory: Memory, mask: Tensor, empty: Tensor) -> Memory:
    """Return the memory with this mask instead of its own. It allows some of the same pairs.

    Everything that was worked out from the keys stays valid.
    """
    found = known(memory)
    return remember(
        memory.key,
        memory.value,
        mask,
        memory.lengths,
        empty=empty,
        upcast=found.upcast,
        key_terms=found.key_terms,
        step_gradients=found.step_gradients,
    )


# functions that go through trees of tensors find none in it
pytree.register_pytree_node(
    Prepared,
    lambda _: ([], None),
    lambda _, __: None,
    flatten_with_keys_fn=lambda _: ([], None),
    serialized_type_name="luong.Prepared",
    to_dumpable_context=lambda _: None,
    from_dumpable_context=lambda _: None,
)
