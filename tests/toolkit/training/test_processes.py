"""Real processes that train together, under torchrun: what they reach, and how they end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training_runs import (
    ENVIRONMENT,
    assert_same_run,
    last,
    recipe,
    rows,
    small,
    wait_for,
    whole_run,
)

from luong.toolkit.config import Config

# 9 pairs by 4 leave batches of one pair, which one of the processes has to go without
UNEVEN = {"batch_size": 4, "validate_every": 4, "checkpoint_every": 3, "updates": 13}


def torchrun(*options: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *options, "-m", "luong.toolkit", "train"]


def together(config: Config, out: Path, *options: str) -> subprocess.Popen[str]:
    """The same training by two processes of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = torchrun("--nproc-per-node", "2", "--master-port", str(port), *options)
    path = recipe(config, out.with_suffix(".yaml"))
    return subprocess.Popen(
        [*command, str(path), "--out", str(out)], env=ENVIRONMENT, text=True, stderr=subprocess.PIPE
    )


def assert_alike(one: Path, other: Path) -> None:
    """Metrics, and the last weights, to rounding."""
    for row, its in zip(rows(one), rows(other), strict=True):
        values = {name: float(value) for name, value in its.items()}
        assert {name: float(row[name]) for name in row} == pytest.approx(values, rel=1e-5)
    tensors, others = load_file(last(one)), load_file(last(other))
    assert tensors.keys() == others.keys()
    for name, value in tensors.items():
        torch.testing.assert_close(value, others[name], atol=2e-5, rtol=1e-3, msg=name)


def few(tmp_path: Path, **settings: object) -> Config:
    config = small(tmp_path, model={"dropout": 0.0}, **UNEVEN | settings)
    table = Path(config.data.train)
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:9]))
    return config


def test_two_processes_are_as_one(tmp_path: Path) -> None:
    config = few(tmp_path, accumulate=2, average=0.5, metric="loss", patience=2, learning_rate=0.2)
    one = whole_run(config, tmp_path / "one")
    with together(config, tmp_path / "two") as process:
        _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert_alike(one, tmp_path / "two")
    assert error.count("pairs to learn from") == 1
    assert error.count("update 4:") == 1


@pytest.mark.slow
def test_a_killed_process_ends_the_others_and_the_run_goes_on(tmp_path: Path) -> None:
    config = few(tmp_path, updates=400, validate_every=100)
    one = whole_run(config, tmp_path / "one")
    with together(config, tmp_path / "two") as process:
        wait_for(process, "update 100:")
        os.kill(workers(process.pid)[1], signal.SIGKILL)
        began = time.monotonic()
        _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert time.monotonic() - began < 60
    assert "update 400:" not in error
    with together(config, tmp_path / "two") as process:
        _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert "going on from update" in error
    assert_alike(one, tmp_path / "two")


@pytest.mark.slow
def test_a_signal_stops_all_processes_at_one_update(tmp_path: Path) -> None:
    config = few(tmp_path, updates=400, validate_every=100, checkpoint_every=1000)
    with together(config, tmp_path / "once") as process:
        _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    with together(config, tmp_path / "two") as process:
        wait_for(process, "update 100:")
        os.kill(workers(process.pid)[1], signal.SIGTERM)  # one of them tells the others
        _, error = process.communicate(timeout=60)
    assert process.returncode != 0
    assert error.count("(SIGTERM); the same command goes on") == 1
    with together(config, tmp_path / "two") as process:
        _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert_same_run(tmp_path / "once", tmp_path / "two")


@pytest.mark.slow
def test_two_hosts_are_as_one(tmp_path: Path) -> None:
    config = few(tmp_path)
    one = whole_run(config, tmp_path / "one")
    path = recipe(config, tmp_path / "two.yaml")
    with two_hosts() as hosts, ExitStack() as stack:
        processes = []
        for rank, (enter, interface) in enumerate(hosts):
            where = ("--nnodes", "2", "--node-rank", str(rank), "--nproc-per-node", "1")
            command = torchrun(*where, "--master-addr", "10.117.0.1", "--master-port", "29411")
            process = subprocess.Popen(
                [*enter, *command, str(path), "--out", str(tmp_path / "two")],
                env=ENVIRONMENT | {"GLOO_SOCKET_IFNAME": interface, "TP_SOCKET_IFNAME": interface},
                text=True,
                stderr=subprocess.PIPE,
            )
            processes.append(stack.enter_context(process))
        errors = [process.communicate(timeout=180)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    assert_alike(one, tmp_path / "two")
    assert "pairs to learn from" in errors[0]
    assert "pairs to learn from" not in errors[1]


@pytest.mark.slow
def test_a_host_that_is_gone_ends_the_other(tmp_path: Path) -> None:
    path = recipe(few(tmp_path, updates=10**6, validate_every=10**6), tmp_path / "r.yaml")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = ("--master-addr", "127.0.0.1", "--master-port", str(free.getsockname()[1]))
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(
                subprocess.Popen(
                    [
                        *torchrun("--nnodes", "2", "--node-rank", str(rank), *where),
                        *(str(path), "--out", str(tmp_path / "two")),
                    ],
                    env=ENVIRONMENT,
                    text=True,
                    stderr=subprocess.PIPE,
                )
            )
            for rank in (0, 1)
        )
        wait_for(first, "pairs to learn from")
        time.sleep(2)
        for pid in (*workers(second.pid), second.pid):
            os.kill(pid, signal.SIGKILL)
        _, error = first.communicate(timeout=60)
    assert first.returncode == 1
    assert error.count("luong: the connection to another process of this training was lost") == 1
    assert "rank0]: Traceback" not in error


@contextmanager
def two_hosts() -> Iterator[list[tuple[list[str], str]]]:
    """Two network namespaces with a cable between them: how to enter each, and its interface."""
    names = [f"luong{os.getpid()}{end}" for end in "ab"]
    if not shutil.which("ip"):
        pytest.skip("needs iproute2")
    try:
        for name in names:
            ip("netns", "add", name)
        ip(
            "link",
            "add",
            "veth0",
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            "veth1",
            "netns",
            names[1],
        )
        for k, name in enumerate(names):
            ip("-n", name, "address", "add", f"10.117.0.{k + 1}/24", "dev", f"veth{k}")
            for device in ("lo", f"veth{k}"):
                ip("-n", name, "link", "set", device, "up")
        yield [(["ip", "netns", "exec", name], f"veth{k}") for k, name in enumerate(names)]
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this system allows no network namespaces: {error.stderr.strip()}")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True)


def workers(pid: int) -> list[int]:
    """The processes that torchrun started."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    if not children.exists():
        pytest.skip("needs Linux's /proc")
    return [int(child) for child in children.read_text().split()]
