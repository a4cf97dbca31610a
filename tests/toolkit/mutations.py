"""Damage to a file of a run: by chance, by malice, by another program."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

STRANGE: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    7,
    10**9,
    2**63,
    10**40,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "\x1b[31m",
    "a\nb",
    "$\\frac$",
    "../../outside",
    "/dev/zero",
    "w" * 5000,
    [],
    {},
    [[[[]]]],
    {"class_path": "os.system"},
)


def mutate(path: Path, others: list[Path], rng: random.Random) -> str:
    """Damage the file in one way, and say in which."""
    kinds = [_flip, _truncate, _duplicate, _extend, _zero, _swap, _replace]
    if path.suffix in (".yaml", ".json"):
        kinds += 5 * [_value]
    if path.suffix == ".safetensors":
        kinds += 5 * [_header]
    kind = rng.choice(kinds)
    return f"{kind.__name__[1:]} of {path.name}: {kind(path, others, rng)}"


def _rewrite(path: Path, change: Callable[[bytearray], None]) -> None:
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)


def _flip(path: Path, _: list[Path], rng: random.Random) -> str:
    at, bit = rng.randrange(max(path.stat().st_size, 1)), rng.randrange(8)

    def change(content: bytearray) -> None:
        if content:
            content[at] ^= 1 << bit

    _rewrite(path, change)
    return f"bit {bit} of byte {at}"


def _truncate(path: Path, _: list[Path], rng: random.Random) -> str:
    size = rng.choice([0, 1, 8, rng.randrange(max(path.stat().st_size, 1))])
    os.truncate(path, min(size, path.stat().st_size))
    return f"to {size} bytes"


def _duplicate(path: Path, _: list[Path], rng: random.Random) -> str:
    size = path.stat().st_size
    start = rng.randrange(max(size, 1))
    stop = rng.randint(start, size)
    _rewrite(path, lambda content: content.__setitem__(slice(stop, stop), content[start:stop]))
    return f"bytes {start} to {stop}"


def _extend(path: Path, _: list[Path], rng: random.Random) -> str:
    more = rng.choice([b"\n", b"\0" * 9, b"x", b"\n- &a [*a]\n", rng.randbytes(40)])
    _rewrite(path, lambda content: content.extend(more))
    return f"by {more!r}"


def _zero(path: Path, _: list[Path], rng: random.Random) -> str:
    size = path.stat().st_size
    start = rng.randrange(max(size, 1))
    stop = min(size, start + rng.choice([1, 4, 64, size]))
    _rewrite(path, lambda content: content.__setitem__(slice(start, stop), bytes(stop - start)))
    return f"bytes {start} to {stop}"


def _swap(path: Path, others: list[Path], rng: random.Random) -> str:
    other = rng.choice(others)
    path.write_bytes(other.read_bytes())
    return f"for {other.name}"


def _replace(path: Path, _: list[Path], rng: random.Random) -> str:
    kind = rng.choice(["nothing", "folder", "pipe", "link to a device", "dangling link"])
    path.unlink()
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "link to a device":
            path.symlink_to("/dev/zero")
        case "dangling link":
            path.symlink_to("nowhere")
    return f"by {kind}"


def _value(path: Path, _: list[Path], rng: random.Random) -> str:
    text = path.read_text(encoding="utf-8")
    tree = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    done = _change(tree, rng)
    dump = json.dumps if path.suffix == ".json" else yaml.safe_dump
    path.write_text(dump(tree), encoding="utf-8")
    return done


def _header(path: Path, _: list[Path], rng: random.Random) -> str:
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    tree = json.loads(content[8 : 8 + size])
    done = _change(tree, rng)
    header = json.dumps(tree).encode()
    header += b" " * (-len(header) % 8)
    length = rng.choice([len(header)] * 9 + [2**62])
    path.write_bytes(length.to_bytes(8, "little") + header + content[8 + size :])
    return f"{done}, length of the header {length}"


def _change(tree: Any, rng: random.Random) -> str:
    """Remove a node of the tree, or put something strange in its place."""
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, child in items:
            places.append((node, key))
            if isinstance(child, dict | list) and child:
                walk(child)

    walk(tree)
    node, key = rng.choice(places)
    if rng.random() < 0.2:
        del node[key]
        return f"{key!r} removed"
    strange = rng.choice(STRANGE)
    node[key] = strange
    return f"{key!r} is {str(strange)[:40]!r}"
