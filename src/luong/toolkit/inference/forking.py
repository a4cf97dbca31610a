"""Preparation of a process that holds a model for the processes that are forked from it."""

from __future__ import annotations

import os
from functools import cache, partial

import torch


@cache
def prepare() -> None:
    """Let processes that are forked from this one compute in one PyTorch thread each.

    GNU OpenMP, PyTorch's threads, does not survive a fork: where the parent has used more than one,
    the first large operation of the child waits for ever for threads that it does not have.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))
