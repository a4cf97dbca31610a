"""The ranges and names that options accept, for the command and for Python. Nothing heavy is
imported.

Those of decoding are in `luong.seq2seq.decoding`.
"""

from __future__ import annotations

from typing import Literal, get_args

from luong.seq2seq.decoding import Range

BATCH_SIZE = Range(1, 10_000, whole=True)  # fewer lines go together where memory asks for it
SOURCE_LENGTH = Range(1, 10_000, whole=True)  # symbols of a line that are read
THRESHOLD = Range(0, 1, open=True)  # of a weight that makes a link
BUCKETS = Range(1, 1000, whole=True)  # ranges of source length
SAMPLES = Range(1, 100_000, whole=True)  # of a bootstrap
SEED = Range(0, 2**32 - 1, whole=True)
BASE = Range(0, 1, whole=True)  # of positions
COLUMNS = Range(1, 1000, whole=True)  # of a sheet of pictures
COUNT = Range(1, 1_000_000_000, whole=True)  # characters of a side
SHOWN = Range(0, 1_000_000_000, whole=True)  # bad lines

StepName = Literal["predicted", "posterior", "read", "paper"]  # see `alignment`
STEPS: tuple[StepName, ...] = get_args(StepName)

Lines = Literal["words", "sentences"]  # what a source is

# Measures and how they are written, in per cent or not; what is measured where nothing is chosen.
PERCENTAGES = {"wer": "WER", "per": "PER", "cer": "CER", "exact": "exact"}
SCORES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER", "perplexity": "perplexity"}
METRICS = PERCENTAGES | SCORES
DEFAULT_METRICS: dict[Lines, tuple[str, ...]] = {
    "words": ("wer", "per"),
    "sentences": ("bleu", "chrf", "ter"),
}

# What a vocabulary keeps for itself, in the order of PAD, START, END, UNKNOWN.
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
