"""The toolkit: the command `luong`, and the models that it trains and runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from luong.toolkit.errors import needs_toolkit

if TYPE_CHECKING:
    from luong.toolkit.inference.translator import Translator


def load(folder: str | Path, *others: str | Path, device: str | None = None) -> Translator:
    """Load the trained model of a run, or several models that predict together.

        from luong.seq2seq import Decoding

        model = luong.load("runs/g2p-en")
        best = model.translate(["attention"], Decoding(beam=5))[0]
        best.text        # "AH T EH N SH AH N"
        best.tokens      # ["AH", "T", "EH", "N", "SH", "AH", "N"]
        best.score       # its log-probability
        best.alignment   # [(0, 0), (1, 1), ...]: source and target positions, from 0
        best.weights     # all of the attention, (target, source)
        model.score(["attention"], [best.text])[0].score  # the same log-probability

    Without a `Decoding`, search is greedy. `model.search` gives several outputs of each line.
    `model.align` and `model.evaluate` do what the commands of these names do.

    Args:
        folder: the folder of a run, where `luong train` wrote it.
        others: folders of more runs with the same vocabularies, for an ensemble.
        device: "cpu", "cuda", "cuda:1" and so on. Default: a GPU where there is one, else the CPU.

    Returns:
        A `Translator`. Threads may share it, and so may forked processes, which compute in one
        thread each.

    Raises:
        ToolkitError: the folder is no trained model; the message is one line.
        ValueError: there is no such device.
        ModuleNotFoundError: the extra `luong[toolkit]` is not installed.
    """
    with needs_toolkit():
        from luong.toolkit.devices import find_device
        from luong.toolkit.inference.translator import Translator
    return Translator.load(Path(folder), *map(Path, others), device=find_device(device))
