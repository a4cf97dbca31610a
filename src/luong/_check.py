"""Checks at the public edge. Every error names the argument, what was expected and what came."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def shape(tensor: Tensor) -> str:
    """Return the shape as people write it: `(2, 3)`."""
    return str(tuple(tensor.shape))


def floating(**tensors: Tensor) -> list[Tensor]:
    """Return the tensors, checked to share one floating dtype and one device.

    Under autocast they are cast first, as `scaled_dot_product_attention` casts its inputs:
    all but float64 to autocast's dtype.
    """
    like, first = next(iter(tensors.items()))
    mixed = None
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}")
        if tensor.dtype not in _DTYPES:
            kind = "a floating-point tensor"
            if tensor.is_floating_point():  # float8, and smaller
                kind = "float32, bfloat16, float16 or float64"
            raise TypeError(f"{name}: expected {kind}, got {tensor.dtype}")
        if tensor.device != first.device:
            raise ValueError(
                f"{name}: expected device {first.device} like {like}, got {tensor.device}"
            )
        if tensor.dtype != first.dtype:
            mixed = name
    if autocast(first):
        low = torch.get_autocast_dtype(first.device.type)
        return [t if t.dtype == torch.float64 else t.to(low) for t in tensors.values()]
    if mixed is not None:
        raise TypeError(
            f"{mixed}: expected {first.dtype} like {like}, got {tensors[mixed].dtype} "
            "(dtypes may differ under torch.autocast only)"
        )
    return list(tensors.values())


def autocast(tensor: Tensor) -> bool:
    """Return whether autocast casts the operations on tensors like this one.

    "meta" is no device type of torch.autocast.
    """
    return tensor.device.type != "meta" and torch.is_autocast_enabled(tensor.device.type)


def rows(name: str, tensor: Tensor, dimensions: str) -> None:
    """Check that `tensor` has two dimensions or more, which `dimensions` spells out."""
    if tensor.ndim < 2:
        raise ValueError(
            f"{name}: expected at least 2 dimensions, {dimensions}, got shape {shape(tensor)}"
        )


def width(name: str, tensor: Tensor, size: int, reason: str) -> None:
    """Check that the last dimension of `tensor` is `size`; `reason` ends with a comma."""
    if tensor.shape[-1] != size:
        raise ValueError(
            f"{name}: expected size {size} in the last dimension, {reason} "
            f"got shape {shape(tensor)}"
        )


def dimensions(name: str, tensor: Tensor, count: int, symbols: str) -> None:
    """Check that `tensor` has exactly `count` dimensions, which `symbols` spells out."""
    if tensor.ndim != count:
        raise ValueError(f"{name}: expected shape {symbols}, got {shape(tensor)}")


def parameter(name: str, tensor: Tensor, expected: tuple[int, ...], symbols: str) -> None:
    """Check that `tensor` has exactly the shape `expected`, which `symbols` spells out."""
    if tuple(tensor.shape) != expected:
        raise ValueError(f"{name}: expected shape {symbols} = {expected}, got {shape(tensor)}")


def batch(**tensors: Tensor) -> torch.Size:
    """Return the common batch shape: all dimensions but the last two, broadcast."""
    common, *rest = (tensor.shape[:-2] for tensor in tensors.values())
    for name, other in zip(list(tensors)[1:], rest, strict=True):
        if other == common:
            continue
        if not broadcast_together(other, common):
            raise ValueError(
                f"{name}: batch dimensions {tuple(other)} do not broadcast with {tuple(common)}"
            )
        common = torch.broadcast_shapes(common, other)
    return common


def broadcast_together(left: Sequence[int], right: Sequence[int]) -> bool:
    """Return whether two shapes broadcast with each other."""
    pairs = zip(reversed(left), reversed(right), strict=False)
    return all(a == b or a == 1 or b == 1 for a, b in pairs)


def broadcasts_to(shape: Sequence[int], expected: Sequence[int]) -> bool:
    """Return whether `shape` broadcasts to `expected`, which itself stays as it is."""
    pairs = zip(reversed(shape), reversed(expected), strict=False)
    return len(shape) <= len(expected) and all(have in (1, want) for have, want in pairs)


def probability(name: str, value: float) -> float:
    """Return `value`, checked to lie in [0, 1)."""
    if not isinstance(value, (int, float)) or not 0.0 <= value < 1.0:
        raise ValueError(f"{name}: expected a probability in [0, 1), got {value!r}")
    return value


def integer(name: str, value: int, least: int) -> int:
    """Return `value`, checked to be a whole number, `least` or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}: expected a whole number, {least} or more, got {value!r}")
    return value
