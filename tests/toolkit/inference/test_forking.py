"""A model that was loaded, and used in several threads, works in processes forked from there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import multiprocessing, os, signal
import torch
from luong.seq2seq import Settings, build
from luong.toolkit.config import Side
from luong.toolkit.inference.translator import Translator
from luong.toolkit.text.vocabulary import Vocabulary

torch.set_num_threads(2)
torch.manual_seed(0)
LINES = ["abc", "cab bca", "a", "bb"] * 16
vocabulary = Vocabulary.build(Side("characters"), LINES)
shape = Settings(embedding_size=64, hidden_size=256, score="concat")
model = build(shape, len(vocabulary), len(vocabulary)).eval()
translator = Translator(model, vocabulary, vocabulary)

def answers(lines=LINES):
    translator.translate(lines)
    return [found.score for found in translator.score(lines, lines)]

def same(found, expected):
    return torch.allclose(torch.tensor(found), torch.tensor(expected), rtol=1e-3)

torch.ones(1 << 21).exp()  # PyTorch's threads are there
expected = answers()

child = os.fork()
if child == 0:
    signal.alarm(60)
    torch.ones(1 << 21).exp()
    os._exit(0 if same(answers(), expected) else 3)
status = os.waitpid(child, 0)[1]
assert status == 0, f"the child ended with {status}"

with multiprocessing.get_context("fork").Pool(2) as pool:
    found = pool.map_async(answers, [LINES, LINES[:5]]).get(timeout=60)
assert same(found[0], expected) and same(found[1], expected[:5])

class Answers(torch.utils.data.Dataset):
    def __len__(self):
        return len(LINES)
    def __getitem__(self, i):
        return answers(LINES[i : i + 1])[0]
loader = torch.utils.data.DataLoader(
    Answers(), batch_size=16, num_workers=2, multiprocessing_context="fork", timeout=60
)
assert same(torch.cat(list(loader)).tolist(), expected)

assert torch.get_num_threads() == 2  # here, nothing changed
assert same(answers(), expected)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_model_survives_a_fork() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
