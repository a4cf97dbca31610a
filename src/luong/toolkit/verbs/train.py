"""luong train"""

from __future__ import annotations

from argparse import ArgumentError
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from luong.toolkit.errors import UsageError


def run(argv: Sequence[str]) -> None:
    """luong train RECIPE --out DIR [--max-time 2h] [--training.updates 1000 ...]"""
    from jsonargparse import ArgumentParser

    from luong.toolkit.config import Config, recipe_path
    from luong.toolkit.stopping import duration

    recipe = argv[0] if argv and not argv[0].startswith("-") else None
    if recipe is None and "--help" not in argv and "-h" not in argv:
        raise UsageError("the recipe comes first: luong train RECIPE --out DIR")
    parser = ArgumentParser(
        prog="luong train",
        description="Learn a model by a recipe. Every setting is a flag; the recipe gives their "
        "defaults. The same command again goes on where it was stopped, by whatever; on a finished "
        "run it says so and does nothing. Under torchrun all processes train one model.",
        exit_on_error=False,
        default_config_files=[str(recipe_path(recipe))] if recipe else [],
    )
    parser.add_argument("recipe", help="a packaged recipe (g2p-en), or a YAML file")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the run")
    parser.add_argument("--max-time", help="stop, to go on later, after this time: 2h30m, 90m, 45s")
    parser.add_argument("--init-from", help="the same as --training.init_from")
    parser.add_class_arguments(Config)
    try:
        parser.get_defaults()
    except (ArgumentError, TypeError, ValueError) as error:  # jsonargparse raises all three
        raise UsageError(f"{recipe}: {error}") from error
    arguments = parser.instantiate(parser.parse_args(list(argv)))
    config = Config(**{field.name: arguments[field.name] for field in fields(Config)})
    if arguments.init_from is not None:
        training = replace(config.training, init_from=arguments.init_from)
        config = replace(config, training=training)

    from luong.toolkit.training import train

    limit = None if arguments.max_time is None else duration(arguments.max_time)
    status = train(config, arguments.out, limit)
    if status:
        raise SystemExit(status)
