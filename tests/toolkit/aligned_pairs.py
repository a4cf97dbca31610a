"""Pairs whose links are known, and models to align them with."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor, nn
from training_runs import spell

from luong.seq2seq.model import START
from luong.toolkit.config import Config, Data, Model, Side
from luong.toolkit.inference.links import Link
from luong.toolkit.inference.translator import Translator, build_model
from luong.toolkit.text import batches
from luong.toolkit.text.lines import Pair
from luong.toolkit.text.vocabulary import Vocabulary

WORDS = ["abc", "aabbcc", "e", "dcba", "", "edcabba", "aaa", "bd"] * 3
PAIRS = [Pair(word, spell(word)) for word in WORDS]


def chance(pairs: list[Pair], source: Side, target: Side, *, seed: int) -> Translator:
    return randomized(
        Vocabulary.build(source, [pair.source for pair in pairs]),
        Vocabulary.build(target, [pair.target for pair in pairs]),
        seed,
    )


def randomized(source: Vocabulary, target: Vocabulary, seed: int) -> Translator:
    torch.manual_seed(seed)
    config = Config(Data("", ""), Model(embedding_size=11, hidden_size=26))
    model = build_model(config, source, target).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return Translator(model, source, target)


def examples_of(translator: Translator, pairs: list[Pair]) -> list[batches.Example]:
    return batches.examples(pairs, translator.source, translator.target)


def subwords(lines: list[str]) -> Vocabulary:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=9, special_tokens=["<pad>", "<s>", "</s>", "<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    return Vocabulary(tokenizer)


def true_links(word: str) -> set[Link]:
    """Each sound with all its letters."""
    found = set[Link]()
    sound = -1
    letters = 0
    for i, letter in enumerate(word):
        if i and word[i - 1] == letter and letters == 1:
            letters = 2
        else:
            sound, letters = sound + 1, 1
        found.add((i, sound))
    return found


def step_by_step(translator: Translator, pair: Pair) -> Tensor:
    """The weights of each step (n + 1, m): one symbol after the other, each pair by itself."""
    (source,) = translator.source.encode([pair.source])
    (target,) = translator.target.encode([pair.target])
    found = []
    with torch.inference_mode():
        memory, state = translator.model.encode(*batches.sources([source]))
        for symbol in [START, *target[:-1]]:
            previous = torch.tensor([[symbol]])
            step = translator.model.decoder.step(previous, state, memory, need_weights=True)
            state = step.state
            assert step.weights is not None
            found.append(step.weights[0, 0])
    return torch.stack(found)
