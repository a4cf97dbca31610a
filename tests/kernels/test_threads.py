"""Kernels in several threads: each task once, the same numbers, errors come out."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

import luong
from additive_cases import inputs
from comparing import assert_all_near, derivatives
from luong.kernels import threads
from rounding import assert_rounded


def large(seed: int = 0) -> list[Tensor]:
    """Enough work for several threads: n x m x d is four million."""
    return inputs(n=48, m=70, d=130, batch=10, dtype=torch.float32, seed=seed)


@pytest.fixture
def set_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def everything(tensors: list[Tensor], lengths: Tensor, backend: str) -> list[Tensor]:
    """Scores, contexts and the gradients of both."""
    scores = derivatives(
        lambda q, k, _, v: [luong.additive_score(q, k, v, backend=backend)], tensors
    )
    attended = derivatives(luong.additive_attention, tensors, lengths=lengths, backend=backend)
    return scores + attended


def test_the_number_of_threads_changes_no_bit(set_threads):
    found = []
    for count in (1, 2, 3):
        set_threads(count)
        found.append(everything(large(), torch.arange(70, 60, -1), "numba"))
    for more in found[1:]:
        assert_all_near(more, found[0], 0.0)


def test_the_number_of_pytorchs_threads_changes_only_rounding(set_threads):
    tensors, lengths = large(), torch.arange(70, 60, -1)
    exact = everything([x.double() for x in tensors], lengths, "reference")
    plain = everything(tensors, lengths, "reference")
    for count in (1, 2, 3):
        set_threads(count)
        found = everything(tensors, lengths, "torch")
        assert_rounded(found, plain, exact, where=f"{count} threads")


def test_eight_python_threads_at_once(set_threads):
    set_threads(2)
    sources = [large(seed) for seed in range(8)]
    alone = [derivatives(luong.additive_attention, x, backend="numba") for x in sources]

    def again(i):
        for _ in range(4):
            found = derivatives(luong.additive_attention, sources[i], backend="numba")
            assert_all_near(found, alone[i], 0.0)
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(again, range(8)))


@pytest.mark.parametrize(("set_to", "expected"), [(1, 1), (2, 2), (3, 3)])
def test_tasks_are_shared_by_as_many_threads_as_pytorch_has(set_threads, set_to, expected):
    done: list[int] = []
    names: set[int] = set()

    def kernel(offset, start, stop):
        done.extend(range(offset + start, offset + stop))
        names.add(threading.get_ident())
        time.sleep(0.01)

    set_threads(set_to)
    threads.each(kernel, 100, tasks=12, cost=1 << 20)
    assert sorted(done) == list(range(100, 112))
    assert len(names) == expected
    names.clear()
    threads.each(kernel, 100, tasks=12, cost=10)  # too little to share
    assert names == {threading.get_ident()}


def test_errors_come_out_of_threads(set_threads):
    def kernel(start, stop):
        raise ValueError(f"at {stop - start}")

    set_threads(2)
    with pytest.raises(ValueError, match="at 1"):
        threads.each(kernel, tasks=2, cost=1 << 20)
