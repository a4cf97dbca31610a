"""Options that several verbs take, with the checks that come before any work."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from luong.seq2seq.decoding import RANGES, Decoding, Range, Sampling
from luong.toolkit.choices import BATCH_SIZE
from luong.toolkit.errors import ToolkitError, UsageError

if TYPE_CHECKING:
    import torch

    from luong.toolkit.inference.translator import Translator

SAMPLING = ("temperature", "top_k", "top_p", "seed")
_SETTINGS = {
    "beam": "number of hypotheses kept at each step; 1 is greedy search",
    "n_best": "number of outputs for a line, best first; the beam is at least as wide",
    "length_penalty": "rank outputs of n symbols by log-probability / n^X; 0: by log-probability",
    "no_repeat_ngram": "let no N symbols in a row occur twice in an output; 0 lets them",
    "min_ratio": "minimum output length = X x source length + --min-extra, in symbols",
    "min_extra": "symbols that are added to the minimum output length: see --min-ratio",
    "max_ratio": "maximum output length = X x source length + --max-extra, in symbols",
    "max_extra": "symbols that are added to the maximum output length: see --max-ratio",
    "temperature": "divide log-probabilities by X; below 1, probable symbols are drawn more often",
    "top_k": "draw only from the N most probable symbols; 0 draws from all",
    "top_p": "draw only from the most probable symbols that together have the probability X",
    "seed": "seed of the draws: the same seed draws the same outputs",
}


class Number:
    """The type of an option whose value is a number within a range."""

    def __init__(self, range: Range) -> None:
        self.range = range

    def __call__(self, text: str) -> float:
        try:
            return self.range.read(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None


def add_number(
    add: Callable[..., object],
    flag: str,
    range: Range,
    help: str,
    *,
    default: float | None = None,
    unset: float | None = None,
) -> None:
    """Add an option whose value is a number within a range. Its help names the range.

    add: a parser's, or a group's, add_argument.
    unset: what is taken for None; the help names it, or the default.
    """
    shown = unset if default is None else default
    text = f"{help} ({range}" + (")" if shown is None else f"; default: {shown:,g})")
    metavar = "N" if range.whole else "X"
    add(flag, type=Number(range), default=default, metavar=metavar, help=text)


def add_settings(add: Callable[..., object], *names: str) -> None:
    """Add options for the fields of `Decoding` and `Sampling` that have these names."""
    for name in names:
        if name in SAMPLING:  # None: not given, as it has to be without --sample
            default, unset = None, getattr(Sampling, name)
        else:
            default, unset = getattr(Decoding, name), None
        add_number(add, flag(name), RANGES[name], _SETTINGS[name], default=default, unset=unset)


def decoding(arguments: Namespace, *names: str, sampling: Sampling | None = None) -> Decoding:
    """Return the settings of decoding that the options of these names ask for.

    The beam is at least as wide as --n-best, unless outputs are drawn.
    """
    settings = _given(arguments, names)
    if not sampling:
        settings["beam"] = max(settings["beam"], settings.get("n_best", 1))
    with flags_named():
        return Decoding(**settings, sampling=sampling)


def sampling(arguments: Namespace) -> Sampling | None:
    """Return the settings of sampling; None without --sample, which they all need."""
    settings = _given(arguments, SAMPLING)
    if arguments.sample:
        return Sampling(**settings)
    if settings:
        raise UsageError(f"{flag(next(iter(settings)))} needs --sample")
    return None


def _given(arguments: Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Return the values of the options that were given."""
    values = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def flag(name: str) -> str:
    """Return the option of a setting."""
    return f"--{name.replace('_', '-')}"


@contextmanager
def flags_named() -> Iterator[None]:
    """Make wrong usage of a ValueError about a setting, `name: reason`."""
    try:
        yield
    except ValueError as error:
        name, _, reason = str(error).partition(":")
        raise UsageError(f"{flag(name)}:{reason}") from error


def add_model(parser: ArgumentParser, nargs: Literal["?"] | None = None) -> None:
    """Add the argument that names a model."""
    parser.add_argument("model", type=Path, nargs=nargs, help="folder of a trained model")


def add_pairs(parser: ArgumentParser) -> None:
    """Add the options for the files of a parallel text."""
    add = parser.add_argument
    add("--source", type=Path, metavar="FILE", required=True, help="file of sources, one a line")
    add("--target", type=Path, metavar="FILE", required=True, help="file of their targets")


def add_ensemble(parser: ArgumentParser) -> None:
    """Add the option for models that predict together."""
    parser.add_argument(
        "--ensemble",
        type=Path,
        action="append",
        default=[],
        metavar="MODEL",
        help="folder of one more model with the same vocabularies, to predict together; may be "
        "given more than once",
    )


def add_computing(parser: ArgumentParser, batch_size: int = 256) -> None:
    """Add the options for how a model computes."""
    add = parser.add_argument
    add_number(
        add,
        "--batch-size",
        BATCH_SIZE,
        "maximum number of lines computed together",
        default=batch_size,
    )
    add(
        "--device",
        help="device to compute on: cpu, cuda, cuda:1, ...; default: a GPU if there is one",
    )
    add("--bf16", action="store_true", help="compute in bfloat16, which is less exact")


def add_unknown(parser: ArgumentParser) -> None:
    """Add the options for unknown words."""
    add = parser.add_argument
    add(
        "--replace-unknown",
        action="store_true",
        help="put, for each unknown symbol of an output, the source word that it attends to most",
    )
    add(
        "--dictionary",
        type=Path,
        metavar="FILE",
        help="file of lines source<TAB>target: --replace-unknown puts the target of a source word "
        "that is in it",
    )


def load(arguments: Namespace) -> Translator:
    """Return the model of `add_model`, or the ensemble, as `add_computing` has it."""
    device = find_device(arguments)  # before a model is read
    return load_on(device, arguments, arguments.model, *arguments.ensemble)


def find_device(arguments: Namespace) -> torch.device:
    """Return the device that --device names."""
    from luong.toolkit import devices

    with flags_named():
        return devices.find_device(arguments.device)


def load_on(device: torch.device, arguments: Namespace, *folders: Path) -> Translator:
    """Return the model of a folder, or an ensemble of several, in the type of numbers of --bf16."""
    import torch

    from luong.toolkit.inference.translator import Translator

    dtype = torch.bfloat16 if arguments.bf16 else torch.float32
    return Translator.load(*folders, device=device, dtype=dtype)


def dictionary(arguments: Namespace) -> Mapping[str, str] | None:
    """Return source words and what stands for them; of several lines for a word the first
    counts.
    """
    if arguments.dictionary and not arguments.replace_unknown:
        raise UsageError("--dictionary needs --replace-unknown")
    if not arguments.replace_unknown:
        return None

    from luong.toolkit.text.lines import lines

    path: Path | None = arguments.dictionary
    entries: dict[str, str] = {}
    for number, line in enumerate(lines(path), 1) if path else ():
        word, tab, meaning = line.partition("\t")
        if not tab or not word or "\t" in meaning:
            raise ToolkitError(f"{path}:{number}: expected source<TAB>target, got {line[:80]!r}")
        entries.setdefault(word, meaning)
    return entries


def refuse(parser: ArgumentParser, arguments: Namespace, names: Iterable[str], reason: str) -> None:
    """Refuse options that were given and would be ignored.

    Raises `UsageError`, which names the first of them and the reason.
    """
    for name in names:
        if getattr(arguments, name) != parser.get_default(name):
            raise UsageError(f"{flag(name)}: {reason}")


def check_output(path: Path | None, *inputs: Path | None) -> None:
    """Refuse, before any work, an --output that cannot be written or that would replace an input.

    An input is a file, or a folder with its files: that of a model.
    Raises `UsageError`, which names the path.
    """
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"--output: expected a file, got the folder {path}")
    if not path.parent.is_dir():
        raise UsageError(f"--output: {path}: there is no folder {path.parent}")
    for other in filter(None, inputs):
        for file in other.iterdir() if other.is_dir() else [other]:
            if file.is_file() and path.is_file() and path.samefile(file):
                raise UsageError(f"--output: {path} is read as well: give another file")
