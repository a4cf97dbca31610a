"""FSDP2 on two processes, and what it does to the storages of parameters."""

import copy
import os
import subprocess
import sys

import pytest
import torch

import luong
from luong.kernels.arrays import array

SHARDED = """
import os, sys, torch, luong
from datetime import timedelta
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
torch.set_num_threads(1)
store, rank = sys.argv[1], int(sys.argv[2])
distributed.init_process_group(
    "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
)
mesh = init_device_mesh("cpu", (2,))
query, key = torch.randn(2, 4, 9, 6, generator=torch.Generator().manual_seed(1)).double()
lengths = torch.tensor([9, 1, 5, 0])
mine = slice(2 * rank, 2 * rank + 2)


def made(name):
    torch.manual_seed(0)
    score, window = {
        "concat": (luong.Concat(6, 6, 19, bias=True), None),
        "concat, local-m": (luong.Concat(6, 6, 19), luong.LocalMonotonic(2)),
        "general, local-p": (luong.General(6, 6), luong.LocalPredictive(6, 4, 2)),
        "location, local-m": (luong.Location(6, 12), luong.LocalMonotonic(1)),
    }[name]
    return luong.Attention(score, window=window).double()


def at_once(attention, rows):
    return attention(query[rows], key[rows], lengths=lengths[rows]).context


def in_steps(attention, rows):
    memory = attention.prepare(key[rows], lengths=lengths[rows])
    steps = [attention.attend(query[rows, i : i + 1], memory, position=i) for i in range(9)]
    return torch.cat([step.context for step in steps], 1)


for name in ("concat", "concat, local-m", "general, local-p", "location, local-m"):
    for call in (at_once, in_steps):
        alone, attention = made(name), made(name)
        call(alone, slice(None)).square().mean().backward()
        fully_shard(attention, mesh=mesh)
        for method in ("prepare", "attend"):
            register_fsdp_forward_method(attention, method)
        call(attention, mine).square().mean().backward()
        for p, expected in zip(attention.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(p.grad.full_tensor(), expected.grad, rtol=1e-11, atol=1e-14)
distributed.barrier()
os._exit(0)  # see test_two_processes_average_their_gradients
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without distributed")
def test_two_processes_share_the_parameters(tmp_path):
    with_store = [sys.executable, "-W", "ignore", "-c", SHARDED, str(tmp_path / "store")]
    processes = [
        subprocess.Popen(
            [*with_store, str(rank)],
            env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()


@pytest.mark.parametrize("score", [luong.Concat(6, 6, 19), luong.Location(6, 12)])
@pytest.mark.parametrize("window", [None, luong.LocalMonotonic(2), luong.LocalPredictive(6, 4, 2)])
def test_storages_can_be_resized_after_a_call(score, window):
    """As they could before: `Tensor.numpy` would take that from them for good."""
    attention = copy.deepcopy(luong.Attention(score, window=window))
    query, key = (torch.randn(3, 5, 6, requires_grad=True) for _ in range(2))
    memory = attention.prepare(key)
    attention.attend(query, memory).context.sum().backward()
    attention(query, key).context.sum().backward()
    for x in (query, key, *attention.parameters()):
        x.untyped_storage().resize_(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (3, 0), ()])
def test_arrays_are_the_numbers_of_tensors(dtype, shape):
    x = torch.arange(6).to(dtype)[: torch.Size(shape).numel()].reshape(shape)
    found = array(x)
    assert (found == x.numpy()).all()
    assert found.dtype == x.numpy().dtype
    assert found.shape == shape
    found += found.dtype.type(1)
    assert (found == x.numpy()).all()  # one memory


def test_an_array_keeps_its_tensor():
    x = torch.arange(6.0).reshape(2, 3).mT  # the array is of a copy that nobody else has
    found = array(x)
    noise = [torch.full((6,), 7.0) for _ in range(100)]
    assert (found == x.numpy()).all()
    assert len(noise) == 100
