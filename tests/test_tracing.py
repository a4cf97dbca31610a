"""torch.jit.trace: a traced module honours other lengths and masks than those of its trace."""

import pytest
import torch
from torch import nn

from comparing import assert_near
from operator_cases import MODULES

# tracing is on its way out of PyTorch, and warns of every size that becomes a constant
pytestmark = [
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
]


class Masked(nn.Module):
    """An attention that takes its lengths or its mask by position, as tracing wants it."""

    def __init__(self, attention, name):
        super().__init__()
        self.attention, self.name = attention, name

    def forward(self, query, key, value, given):
        return self.attention(query, key, value, **{self.name: given}).context


@pytest.mark.parametrize("name", ["lengths", "mask"])
@pytest.mark.parametrize("case", MODULES, ids=lambda case: case.name)
def test_a_trace_of_full_sentences_honours_shorter_ones(case, name):
    def given(*numbers):
        lengths = torch.tensor(numbers)
        return lengths if name == "lengths" else (torch.arange(m) < lengths[:, None])[:, None]

    m, tensors = case.sizes.m, case.inputs()[:3]
    module = Masked(case.attention().double(), name)
    traced = torch.jit.trace(module, (*tensors, given(m, m, m)), check_trace=False)
    for others in [(3, m, 1), (m, 0, 2)]:
        assert_near(traced(*tensors, given(*others)), module(*tensors, given(*others)), 1e-12)
