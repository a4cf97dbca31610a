"""The environment variables by which torchrun numbers the processes that it starts."""

from __future__ import annotations

import os
from typing import NamedTuple

from luong.toolkit.errors import UsageError


class Process(NamedTuple):
    """The number of this process among several; 0 of 1 if torchrun did not start it."""

    rank: int = 0
    size: int = 1
    local: int = 0  # its rank on this machine

    @classmethod
    def here(cls) -> Process:
        rank, size, local = (
            _number(name, least, otherwise)
            for name, least, otherwise in (
                ("RANK", 0, 0),
                ("WORLD_SIZE", 1, 1),
                ("LOCAL_RANK", 0, 0),
            )
        )
        if rank >= size:
            raise UsageError(f"RANK={rank}: expected less than WORLD_SIZE, which is {size}")
        if started() or size > 1:
            for name in ("MASTER_ADDR", "MASTER_PORT"):
                if not os.environ.get(name):
                    given = "LOCAL_RANK" if started() else "WORLD_SIZE"
                    raise UsageError(f"{name} is not set, but {given} is: torchrun sets both")
            _number("MASTER_PORT", 1, 1)
        return cls(rank, size, local)


ALONE = Process()


def started() -> bool:
    """Return whether torchrun started this process."""
    return "LOCAL_RANK" in os.environ


def _number(name: str, least: int, otherwise: int) -> int:
    text = os.environ.get(name, str(otherwise))
    if not (text.isascii() and text.isdecimal() and int(text) >= least):
        raise UsageError(f"{name}={text}: expected a number from {least}, as torchrun sets it")
    return int(text)
