"""The ranges and names that options accept, for the command and for Python.

Those of decoding are in `luong.seq2seq.decoding`. Nothing heavy is imported here.
"""

from __future__ import annotations

from typing import Literal, get_args

from luong.seq2seq.decoding import Range

BATCH_SIZE = Range(1, 10_000, whole=True)  # lines; fewer, where memory is short
SOURCE_LENGTH = Range(1, 10_000, whole=True)  # symbols that are read of a line
THRESHOLD = Range(0, 1, open=True)  # the least weight that makes a link
BUCKETS = Range(1, 1000, whole=True)  # groups of sources by length
SAMPLES = Range(1, 100_000, whole=True)  # samples of a bootstrap
SEED = Range(0, 2**32 - 1, whole=True)
BASE = Range(0, 1, whole=True)  # the number of the first position
COLUMNS = Range(1, 1000, whole=True)  # pictures side by side on a sheet
COUNT = Range(1, 1_000_000_000, whole=True)  # characters of one side of a pair
SHOWN = Range(0, 1_000_000_000, whole=True)  # bad lines that are shown

StepName = Literal["predicted", "posterior", "read", "paper"]  # see `alignment`
STEPS: tuple[StepName, ...] = get_args(StepName)

Lines = Literal["words", "sentences"]  # what each line is

# Measures by the names of options, with the names that are printed: in per cent, and others.
PERCENTAGES = {"wer": "WER", "per": "PER", "cer": "CER", "exact": "exact"}
SCORES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER", "perplexity": "perplexity"}
METRICS = PERCENTAGES | SCORES
# What is measured when no measure is chosen.
DEFAULT_METRICS: dict[Lines, tuple[str, ...]] = {
    "words": ("wer", "per"),
    "sentences": ("bleu", "chrf", "ter"),
}

# The symbols that every vocabulary has, in the order of PAD, START, END, UNKNOWN.
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
