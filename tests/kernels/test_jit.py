"""Machine code that numba keeps is never used once the sources of the kernels have changed."""

import importlib
import shutil
import sys
from pathlib import Path

import pytest
from numba.extending import is_jitted

from luong import kernels
from luong.kernels import jit
from luong.kernels.additive import backward, forward, windowed_loops
from luong.kernels.windowed import loops

LOOPS = """
from inlined import plus
from luong.kernels.jit import exact

@exact
def kernel(x):
    return plus(x)
"""
INLINED = """
from luong.kernels.jit import inline

@inline
def plus(x):
    return x + {}
"""


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Return a function that calls a kernel as a process does that finds these sources on disk."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "loops.py").write_text(LOOPS)

    def call(inlined):
        (tmp_path / "inlined.py").write_text(inlined)
        monkeypatch.setattr(jit, "DIGEST", jit.digest(tmp_path))
        for name in ("loops", "inlined"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        kernel = importlib.import_module("loops").kernel
        return kernel(1), sum(kernel.stats.cache_hits.values())

    yield call
    for name in ("loops", "inlined"):
        sys.modules.pop(name, None)


def test_an_edit_of_an_inlined_file_compiles_anew(call):
    assert call(INLINED.format(1)) == (2, 0)
    assert call(INLINED.format(1)) == (2, 1)
    assert call(INLINED.format(20)) == (21, 0)


def test_an_edit_of_any_source_changes_the_digest(tmp_path):
    copy = tmp_path / "kernels"
    shutil.copytree(Path(kernels.__file__).parent, copy, ignore=lambda *_: ["__pycache__"])
    assert jit.digest(copy) == jit.DIGEST
    sources = sorted(copy.rglob("*.py"))
    assert len(sources) > 10
    for source in sources:
        text = source.read_text()
        source.write_text(text + "# edited\n")
        assert jit.digest(copy) != jit.DIGEST, source
        source.write_text(text)
    (copy / "additive/__pycache__").mkdir()
    (copy / "additive/__pycache__/forward.nbi").touch()
    assert jit.digest(copy) == jit.DIGEST
    sources[0].rename(sources[0].with_name("renamed.py"))
    assert jit.digest(copy) != jit.DIGEST


@pytest.mark.parametrize(
    "module", [forward, backward, windowed_loops, loops], ids=lambda x: x.__name__
)
def test_kernels_bear_the_digest(module):
    jitted = [x for x in vars(module).values() if is_jitted(x)]
    names = [x.py_func.__qualname__ for x in jitted if x.targetoptions.get("nogil")]
    assert names
    assert all(name.endswith(jit.DIGEST) for name in names)
