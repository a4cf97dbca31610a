"""Recurrent encoder-decoder models with Luong attention. They know nothing of files or text."""

from luong.seq2seq.model import Seq2Seq as Seq2Seq
from luong.seq2seq.search import Decoding as Decoding
from luong.seq2seq.search import Hypothesis as Hypothesis
from luong.seq2seq.search import Sampling as Sampling
from luong.seq2seq.search import decode as decode
from luong.seq2seq.search import greedy as greedy
from luong.seq2seq.symbols import END as END
from luong.seq2seq.symbols import PAD as PAD
from luong.seq2seq.symbols import START as START
from luong.seq2seq.symbols import UNKNOWN as UNKNOWN
