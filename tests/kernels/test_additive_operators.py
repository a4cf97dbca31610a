"""The operators of additive attention as PyTorch, its compiler and its exports see them."""

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

import luong
from additive_cases import inputs, normal
from comparing import assert_all_near, derivatives
from luong.kernels.additive import compiled, operators


@pytest.mark.parametrize(
    ("n", "m", "masked", "layout", "dtype"),
    [
        (1, 7, False, "contiguous", torch.float32),
        (1, 7, True, "contiguous", torch.float32),
        (5, 7, False, "contiguous", torch.float64),
        (5, 7, True, "contiguous", torch.float32),
        (40, 40, False, "contiguous", torch.float32),
        (40, 40, True, "contiguous", torch.float64),
        (5, 7, True, "transposed", torch.float32),
        (40, 40, False, "transposed", torch.float32),
        (5, 7, True, "expanded", torch.float32),
    ],
    ids=str,
)
def test_opcheck(n, m, masked, layout, dtype):
    *rows, v = inputs(n, m, 9, dtype=dtype)  # at 40 x 40 weights are not kept
    if layout == "transposed":
        rows = [x.mT.contiguous().mT for x in rows]
    if layout == "expanded":
        rows = [x[:1].expand_as(x) for x in rows]
    query, key, value = rows
    mask = normal(3, n, m, seed=2) < 0.7 if masked else None
    terms = compiled.prepare(key, mask)
    torch.library.opcheck(operators.prepare_op, (key, mask))
    leaves = [x.requires_grad_() for x in (query, key, value, v)]
    query, key, value, v = leaves
    torch.library.opcheck(operators.score_op, (query, key, v, mask, terms))
    torch.library.opcheck(operators.context_op, (query, key, value, v, mask, terms))
    query, key, value, v = (x.detach() for x in leaves)
    kept = compiled.context_and_weights(query, key, value, v, mask, terms)[1]
    assert kept.shape == (3, n if n < 40 else 0, m)
    given = normal(3, n, m, dtype=dtype)
    torch.library.opcheck(operators.score_backward_op, (given, query, key, v, mask, terms))
    given = normal(3, n, value.shape[2], dtype=dtype)
    torch.library.opcheck(
        operators.context_backward_op, (given, query, key, value, v, mask, kept, terms)
    )


class Graphs:
    """A compiler that keeps what it is given, and runs it as it is."""

    def __init__(self):
        self.code = {"forward": "", "backward": ""}
        torch._dynamo.reset()
        self.backend = aot_autograd(
            fw_compiler=self._keep("forward"), bw_compiler=self._keep("backward")
        )

    def _keep(self, which):
        def keep(module, _):
            self.code[which] += module.code
            return make_boxed_func(module)

        return keep

    def compile(self, function):
        return torch.compile(function, fullgraph=True, backend=self.backend)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("what", ["score", "attend"])
def test_compiled_code_holds_the_operator(what, masked):
    query, key, value, v = inputs()
    given = {"lengths": torch.tensor([7, 2, 0])} if masked and what == "attend" else {}
    tensors = (query, key, v) if what == "score" else (query, key, value, v)

    def call(*x):
        if what == "score":
            return (luong.additive_score(*x),)
        return luong.additive_attention(*x, **given)

    graphs = Graphs()
    actual = derivatives(graphs.compile(call), tensors)
    assert_all_near(actual, derivatives(call, tensors), 1e-13)
    assert f"luong.additive_{what}.default" in graphs.code["forward"]
    assert f"luong.additive_{what}_backward.default" in graphs.code["backward"]


def test_compiled_code_takes_a_layout_that_is_not_contiguous():
    tensors = [x.mT.contiguous().mT if x.ndim > 1 else x for x in inputs()]
    actual = derivatives(Graphs().compile(luong.additive_attention), tensors)
    assert_all_near(actual, derivatives(luong.additive_attention, tensors), 1e-13)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # dynamo looks
def test_compiled_steps_hold_the_operators():
    attention = luong.Attention(luong.Concat(6, 5, 19)).double()
    key, query, lengths = normal(3, 7, 5), normal(3, 4, 6), torch.tensor([7, 3, 0])
    first, then = Graphs(), Graphs()
    memory = first.compile(attention.prepare)(key, lengths=lengths)
    attend = then.compile(attention.attend)
    expected = attention(query, key, lengths=lengths).context
    steps = [attend(query[:, i : i + 1], memory).context for i in range(4)]
    assert_all_near([torch.cat(steps, 1)], [expected], 1e-13)
    assert "luong.additive_prepare.default" in first.code["forward"]
    assert "luong.additive_attend.default" in then.code["forward"]
    assert "additive_prepare" not in then.code["forward"]


@pytest.mark.parametrize("what", ["forward", "steps"])
def test_exports_hold_no_operator_of_luong(what):
    attention = luong.Attention(luong.Concat(6, 5, 19)).double()
    query, key = normal(3, 4, 6), normal(3, 7, 5)

    class Steps(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = attention

        def forward(self, query, key):
            return self.attention.attend(query, self.attention.prepare(key))

    program = torch.export.export(attention if what == "forward" else Steps(), (query, key))
    assert "luong" not in program.graph_module.code
    assert "aten.tanh" in program.graph_module.code
    actual = program.module()(query, key)[0]
    assert_all_near([actual], [attention(query, key).context], 1e-13)
