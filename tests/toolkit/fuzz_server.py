"""Run commands of luong, each in a process forked from this one, which has imported everything.

A line of JSON on stdin is a command: `argv`, and the folder `cwd` it runs in. A line of JSON on
stdout tells how it ended: its exit status (negative: the signal), stdout, stderr.
"""

import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path

import torch

from luong.toolkit.command.cli import VERBS, main

MEMORY = 1 << 30  # bytes that a command may take, beyond what this process has
SECONDS = 20  # of the processor
PATIENCE = 120  # seconds on the clock: the machine may be busy


def run(argv: list[str], cwd: str) -> tuple[int, str, str]:
    streams = [Path(cwd) / name for name in (".stdout", ".stderr")]
    child = os.fork()
    if child == 0:
        _become(argv, cwd, streams)
    late = time.monotonic() + PATIENCE
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > late:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    texts = [path.read_bytes().decode("utf-8", "backslashreplace") for path in streams]
    for path in streams:
        path.unlink()
    return os.waitstatus_to_exitcode(status), texts[0], texts[1]


def _become(argv: list[str], cwd: str, streams: list[Path]) -> None:
    """The command, in the child: never returns."""
    status = 70
    try:
        os.chdir(cwd)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, path in enumerate(streams, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8") for number in (1, 2))
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limits = {
            resource.RLIMIT_AS: pages * resource.getpagesize() + MEMORY,
            resource.RLIMIT_CPU: SECONDS,
            resource.RLIMIT_FSIZE: 1 << 26,
        }
        for limit, most in limits.items():
            resource.setrlimit(limit, (most, most))
        status = main(argv)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


def serve() -> None:
    torch.set_num_threads(1)
    names = (
        f"luong.toolkit.{name}"
        for name in ("training.loop", "inference.translator", "inference.pictures")
    )
    for name in (*names, *(f"luong.toolkit.command.{verb}" for verb in VERBS)):
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(run(command["argv"], command["cwd"])), file=answers, flush=True)


if __name__ == "__main__":
    serve()
