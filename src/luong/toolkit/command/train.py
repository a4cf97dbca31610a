"""luong train"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import MISSING
from pathlib import Path

from luong.toolkit.command import terminal
from luong.toolkit.config import Config, read_settings, recipe_path, recipes, shown
from luong.toolkit.errors import UsageError
from luong.toolkit.plain import Scalar
from luong.toolkit.schema import Leaf, build, leaves, nearest, sections


def run(argv: Sequence[str]) -> None:
    """luong train RECIPE --out DIR [--max-time 2h] [--training.updates 1000 ...]"""
    helped = "--help" in argv or "-h" in argv
    recipe = argv[0] if argv and not argv[0].startswith("-") else None
    if recipe is None and not helped:
        raise UsageError("the recipe comes first: luong train RECIPE --out DIR")
    given = read_settings(recipe_path(recipe)) if recipe else {}
    parser = _parser(given)
    arguments, rest = parser.parse_known_args(list(argv))
    known = leaves(Config)
    if rest:
        close = nearest(rest[0], [f"--{key}" for key in known])
        raise UsageError(f"{rest[0]}: no such option of luong train{close}")
    flags = {key: Scalar(text) for key, text in vars(arguments).items() if key in known}
    config = _config(arguments.recipe, given, flags)

    from luong.toolkit.training.loop import train
    from luong.toolkit.training.stopping import duration

    limit = None if arguments.max_time is None else duration(arguments.max_time)
    status = train(config.located(), arguments.out, limit)
    if status:
        raise SystemExit(status)


def _config(recipe: str, given: dict[str, Scalar], flags: dict[str, Scalar]) -> Config:
    """Return the settings of a recipe and of flags, which come first."""
    try:
        return build(Config, given | flags)
    except UsageError as error:
        key = str(error).partition(":")[0]
        if key in flags:
            raise UsageError(f"--{error}") from error
        advice = "" if key in given else f"; give --{key}"
        raise UsageError(f"{recipe}: {error}{advice}") from error


def _parser(given: dict[str, Scalar]) -> argparse.ArgumentParser:
    listed = "".join(f"\n  {name:<17}{_summary(path)}" for name, path in recipes().items())
    parser = terminal.Parser(
        "train",
        "Train a model as a recipe says. Every setting is a flag, whose default is that of the "
        "recipe. The same command continues a run that was stopped, for whatever reason; on a "
        "finished run it says so and does nothing. Processes that torchrun starts train one model.",
        epilog=f"recipes:{listed}\n\n`luong train RECIPE --help` shows the defaults of a recipe.",
    )
    parser.usage = "luong train RECIPE --out DIR [--max-time TIME] [--training.updates N ...]"
    add = parser.add_argument
    add("recipe", help="a packaged recipe (g2p-en), or a YAML file")
    add("--out", type=Path, required=True, metavar="DIR", help="the folder of the run")
    add("--max-time", metavar="TIME", help="stop, to go on later, after this time: 2h30m, 90m, 45s")
    for section in sections(Config):
        add = parser.add_argument_group(section.key, section.about).add_argument
        for leaf in section.leaves:
            aliases = ["--init-from"] if leaf.key == "training.init_from" else []
            add(
                f"--{leaf.key}",
                *aliases,
                default=argparse.SUPPRESS,
                metavar=f"{{{','.join(leaf.choices)}}}" if leaf.choices else leaf.metavar,
                help=f"{leaf.meaning.rstrip('.')} ({_default(leaf, given)})".replace("%", "%%"),
            )
    return parser


def _default(leaf: Leaf, given: dict[str, Scalar]) -> str:
    if leaf.key in given:
        return f"default: {given[leaf.key].text or 'null'}"
    return "to be given" if leaf.default is MISSING else f"default: {shown(leaf.default)}"


def _summary(path: Path) -> str:
    """Return the first line of a recipe, which is a comment."""
    with path.open(encoding="utf-8") as file:
        return file.readline().strip("#:. \n")
