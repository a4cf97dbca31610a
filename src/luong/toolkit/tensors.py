"""Tensors in a safetensors file, which are checked before memory is taken, and hashed."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save as serialized
from torch import Tensor

from luong.toolkit import files
from luong.toolkit.errors import ToolkitError
from luong.toolkit.plain import parse_json

_METADATA = "luong"  # the only key of the metadata: the library would write several in any order
_HASH_FIELD = "sha256"  # a field of its value: the hash of all tensors and of the other fields
_MAX_HEADER = 1 << 24  # bytes
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class Form(NamedTuple):
    """The dtype, shape and place of a tensor, known before it is read."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} of shape {list(self.shape)}"


class Stored:
    """An open file of tensors. Only its header has been read."""

    def __init__(self, path: Path, file: BufferedReader) -> None:
        self._path, self._file = path, file
        try:
            header = _header(file)
            self.about = _about(header.pop("__metadata__", {}))  # what was saved with the tensors
            self.forms = _forms(header, os.fstat(file.fileno()).st_size - file.tell())
        except ValueError as error:
            raise ToolkitError(f"{path}: not a file of tensors, or damaged ({error})") from error

    def expect(self, tensors: Mapping[str, Tensor]) -> None:
        """Refuse names, dtypes and shapes other than those of `tensors`, which may be on meta."""
        wanted = {name: Form(x.dtype, tuple(x.shape)) for name, x in tensors.items()}
        for name in sorted(wanted.keys() | self.forms.keys()):
            if name not in self.forms:
                raise ToolkitError(f"{self._path}: {name} is missing")
            if name not in wanted:
                raise ToolkitError(f"{self._path}: {name!r} is unknown")
            if self.forms[name] != wanted[name]:
                raise ToolkitError(
                    f"{self._path}: {name}: expected {wanted[name]}, got {self.forms[name]}"
                )

    def read(self) -> dict[str, Tensor]:
        """Return the tensors, checked by the hash in the file. Older files have no hash."""
        found = dict[str, Tensor]()
        for name, form in self.forms.items():  # in their order in the file
            found[name] = torch.empty(form.shape, dtype=form.dtype, device="cpu")
            content = _bytes(found[name])
            if self._file.readinto(content) < len(content):
                raise ToolkitError(f"{self._path}: damaged: its end is missing")
        if _HASH_FIELD in self.about and self.about[_HASH_FIELD] != digest(found, self.about):
            raise ToolkitError(f"{self._path}: damaged: its content has changed since it was saved")
        return found


@contextmanager
def opened(path: Path) -> Iterator[Stored]:
    """Open a file of tensors, whose header is checked before anything is read."""
    with files.opened(path) as file:
        yield Stored(path, file)


def save(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, object]) -> None:
    """Write a safetensors file; tensors that share memory are written one by one.

    about: plain data that are saved, and hashed, with the tensors.
    """
    seen = set[int]()
    unshared = dict[str, Tensor]()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        unshared[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    text = json.dumps({**about, _HASH_FIELD: digest(unshared, about)})
    data = serialized(
        unshared, {_METADATA: text}
    )  # the library's own file is not synced, leaves debris
    with files.replacing(path) as partial:
        partial.write_bytes(data)


def digest(tensors: Mapping[str, Tensor], about: Mapping[str, object]) -> str:
    """Return the SHA-256 of `about` and of the tensors' names, dtypes, shapes and bytes."""
    names = sorted(tensors)
    forms = {name: [str(tensors[name].dtype), list(tensors[name].shape)] for name in names}
    rest = {key: value for key, value in about.items() if key != _HASH_FIELD}
    found = hashlib.sha256(json.dumps([forms, rest], sort_keys=True).encode())
    for name in names:
        found.update(_bytes(tensors[name].detach().cpu().contiguous()))
    return found.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the CPU."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _header(file: BufferedReader) -> dict[str, Any]:
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= _MAX_HEADER:
        raise ValueError("its header has no sensible length")
    text = file.read(length)
    header = parse_json(text) if len(text) == length else None
    if not isinstance(header, dict):
        raise ValueError("its header is cut or no JSON object")
    return header


def _about(metadata: object) -> dict[str, Any]:
    """Return the data saved with the tensors: all metadata, in files of older versions."""
    if not isinstance(metadata, dict):
        raise ValueError("its metadata are no JSON object")
    about = parse_json(str(metadata[_METADATA]).encode()) if _METADATA in metadata else metadata
    if not isinstance(about, dict):
        raise ValueError(f"its metadata {_METADATA!r} are no JSON object")
    return about


def _forms(header: dict[str, Any], size: int) -> dict[str, Form]:
    """Return each tensor's form, in the order of the file.

    Together they have to fill the `size` bytes of its content.
    """
    parts = sorted((_part(name, entry) for name, entry in header.items()), key=lambda part: part[0])
    end = 0
    for (start, stop), name, form in parts:
        if start != end or stop - start != form.dtype.itemsize * math.prod(form.shape):
            raise ValueError(f"the place of {name!r} is wrong")
        end = stop
    if end != size:
        raise ValueError(f"expected {end:,} bytes after its header, got {size:,}")
    return {name: form for _, name, form in parts}


def _part(name: str, entry: object) -> tuple[tuple[int, int], str, Form]:
    """Return a tensor's place, name and form."""
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [start, stop], **rest} if (
            dtype in _DTYPES
            and not rest
            and len(shape) < 8
            and all(type(number) is int and 0 <= number < 2**63 for number in (*shape, start, stop))
        ):
            return (start, stop), name, Form(_DTYPES[dtype], tuple(shape))
    raise ValueError(f"the entry of {name!r} is none of a tensor")
