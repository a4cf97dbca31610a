"""Options that several verbs take, as the settings that they become."""

from __future__ import annotations

import argparse

import pytest

from luong.seq2seq import Decoding, Sampling
from luong.toolkit.command import options
from luong.toolkit.errors import UsageError

SEARCH = tuple(name for name in Decoding.__dataclass_fields__ if name != "sampling")


def decoding(*argv: str) -> Decoding:
    """The settings of these options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sample", action="store_true")
    options.add_settings(parser.add_argument, *SEARCH, *options.SAMPLING)
    arguments = parser.parse_args(list(argv))
    return options.decoding(arguments, *SEARCH, sampling=options.sampling(arguments))


def test_every_setting_of_decoding_is_an_option() -> None:
    assert decoding() == Decoding()
    argv = ["--beam=7", "--n-best=4", "--length-penalty=0.5", "--no-repeat-ngram=3"]
    argv += ["--min-ratio=1.5", "--min-extra=1", "--max-ratio=3", "--max-extra=2"]
    assert decoding(*argv) == Decoding(
        beam=7,
        n_best=4,
        length_penalty=0.5,
        no_repeat_ngram=3,
        min_ratio=1.5,
        min_extra=1,
        max_ratio=3,
        max_extra=2,
    )
    assert decoding("--sample") == Decoding(sampling=Sampling())
    argv = ["--sample", "--n-best=4", "--temperature=2", "--top-k=5", "--top-p=0.9", "--seed=7"]
    sampling = Sampling(temperature=2, top_k=5, top_p=0.9, seed=7)
    assert decoding(*argv) == Decoding(n_best=4, sampling=sampling)


@pytest.mark.parametrize("beam", [(), ("--beam=1",), ("--beam=3",)])
def test_the_beam_is_as_wide_as_the_number_of_outputs(beam: tuple[str, ...]) -> None:
    assert decoding("--n-best=3", *beam) == Decoding(beam=3, n_best=3)


def test_options_of_sampling_need_it() -> None:
    for name in options.SAMPLING:
        flag = options.flag(name)
        with pytest.raises(UsageError, match=f"^{flag} needs --sample$"):
            decoding(f"{flag}=1")
    with pytest.raises(UsageError, match=r"^--beam: expected 1 where outputs are drawn, got 2$"):
        decoding("--sample", "--beam=2")
