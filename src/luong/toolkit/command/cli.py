"""Run the command `luong`: find the verb, and print an error as one line."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from argparse import ArgumentError
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from luong import __version__
from luong.toolkit import torchrun
from luong.toolkit.command.terminal import say
from luong.toolkit.errors import ToolkitError, UsageError, needs_toolkit
from luong.toolkit.standard import guarded

USAGE = """\
usage: luong VERB ...

  train      learn a model from pairs of lines, by a recipe
  translate  a line out for every line in
  align      word alignments of a parallel text
  score      the log-probability of given pairs
  evaluate   error rates, BLEU and more on pairs that the model has not seen; alignment error rate
  plot       alignments and training curves as pictures
  check      everything wrong with a corpus, by file and line

`luong VERB --help` tells more. `--debug` shows where an error came from. For example:

  luong train g2p-en --out runs/g2p-en
  luong translate runs/g2p-en attention
"""


VERBS = ("train", "translate", "align", "score", "evaluate", "plot", "check")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; errors are one line on stderr. Returns the exit status."""
    if argv is not None:
        return _status(list(argv))
    _speak_utf8()
    status = _status(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done
    if torchrun.started():
        # The exit of a process would take down threads of gloo that now and then are still at it:
        # "terminate called without an active exception", after all was done.
        os._exit(status)
    return status


def _speak_utf8() -> None:
    """Start again in UTF-8 mode, if the locale has another encoding for names and arguments."""
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        environment = os.environ | {"PYTHONUTF8": "1"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def _status(argv: list[str]) -> int:
    options = argv[: argv.index("--")] if "--" in argv else argv
    debug = "--debug" in options
    argv = [argument for argument in options if argument != "--debug"] + argv[len(options) :]
    warnings.showwarning = _show_warning
    with guarded():
        try:
            try:
                return _run(argv)
            finally:
                sys.stdout.flush()
        except SystemExit as end:  # --help
            return int(end.code or 0)
        except BrokenPipeError:  # the reader has gone: nobody to tell
            return 1
        except KeyboardInterrupt:
            say("interrupted")
            return 130
        except (ArgumentError, ToolkitError, ModuleNotFoundError, OSError) as error:
            if debug:
                raise
            say(_explain(error))
            return 2 if isinstance(error, (ArgumentError, UsageError)) else 1


def _run(argv: list[str]) -> int:
    match argv:
        case ["--help" | "-h"]:
            print(USAGE, end="")
        case ["--version"]:
            print(f"luong {__version__}")
        case [verb, *rest] if verb in VERBS:
            with needs_toolkit():
                import_module(f"luong.toolkit.command.{verb}").run(rest)
        case [verb, *_]:
            raise UsageError(f"no verb {verb!r}: expected one of {', '.join(VERBS)}")
        case _:
            raise UsageError(f"expected a verb: {', '.join(VERBS)} (see luong --help)")
    return 0


def _explain(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    say(" ".join(str(message).split()))
