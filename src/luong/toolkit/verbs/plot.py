"""luong plot"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from luong.toolkit import terminal


def run(argv: Sequence[str]) -> None:
    """luong plot MODEL TEXT [--out FILE]"""
    parser = terminal.parser("plot", "Draw what the model attends to while it translates a line.")
    parser.add_argument("model", type=Path, help="the folder of a trained model")
    parser.add_argument("text", help="what to translate")
    parser.add_argument("--out", type=Path, help="PNG, SVG or PDF; the default is TEXT.png")
    arguments = parser.parse_args(list(argv))

    from luong.toolkit import plotting
    from luong.toolkit.translating import Translator

    out = arguments.out or Path(arguments.text.replace(os.sep, "_") + ".png")
    (translation,) = Translator.load(arguments.model).translate([terminal.checked(arguments.text)])
    terminal.report(translation, arguments.text)
    plotting.save(translation, out)
    print(out)
