"""What strangers get: the archive of the sources, the wheel, the public names, the README."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = list((ROOT / "docs").glob("*.md"))


def python(*arguments: str, path: Path | None = None) -> str:
    """Return what Python prints where it imports luong from the path: the sources, if none."""
    command = [sys.executable, *arguments]
    environment = {"PYTHONPATH": str(path or ROOT / "src")}
    done = subprocess.run(
        command, cwd=path or ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the sdist, and of the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    python("-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT))
    return folder


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel, installed elsewhere."""
    target = tmp_path_factory.mktemp("installed")
    (wheel,) = dist.glob("*.whl")
    python("-m", "pip", "install", "-q", "--no-deps", "--target", str(target), str(wheel))
    return target


@pytest.fixture
def unpacked(dist: Path, tmp_path: Path) -> Path:
    """The sdist, unpacked elsewhere."""
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    return folder


def test_the_sdist_has_every_file_of_the_repository(unpacked: Path) -> None:
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        pytest.skip("compares the sdist with a git repository, and this is none")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    tracked = [Path(name) for name in listed.stdout.decode().split("\0") if name]
    assert len(tracked) > 100
    missing = [str(path) for path in tracked if not (unpacked / path).is_file()]
    assert missing == [str(path) for path in tracked if not (ROOT / path).is_file()]


@pytest.mark.slow
def test_tests_pass_from_the_unpacked_sdist(unpacked: Path) -> None:
    """The tests that read files of the repository, after the imports of all others."""
    options = ["-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist"]
    tests = [f"tests/test_{name}.py" for name in ("docstrings", "extras", "package", "reproduce")]
    for arguments in (["--collect-only"], [*tests, "tests/toolkit/test_recipes.py"]):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *arguments],
            cwd=unpacked,
            env={"PYTHONPATH": str(unpacked / "src")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout


def test_the_wheel_has_every_public_name(installed: Path) -> None:
    code = (
        "import luong; names = sorted(luong.__all__); "
        "[getattr(luong, name) for name in names]; print(luong.__file__); print(*names)"
    )
    where, names = python("-c", code, path=installed).splitlines()
    assert Path(where).is_relative_to(installed)
    stub = (ROOT / "src/luong/__init__.pyi").read_text()
    assert names.split() == sorted(re.findall(r" as (\w+)\n", stub))
    assert {"Attention", "General", "general_attention", "columns"} <= set(names.split())


def test_the_wheel_has_its_data(installed: Path) -> None:
    for name in (
        "py.typed",
        "__init__.pyi",
        "toolkit/recipes/g2p-en.yaml",
        "toolkit/text/data/cmudict.test.txt",
        "toolkit/text/data/CMUDICT_LICENSE",
    ):
        assert (installed / "luong" / name).is_file(), name


def test_the_wheel_has_the_command(installed: Path) -> None:
    assert "luong VERB" in python("-m", "luong.toolkit", "--help", path=installed)


def test_import_is_light() -> None:
    python("-c", "import luong, sys; assert 'torch' not in sys.modules")


def test_the_operators_do_not_import_the_compiler() -> None:
    python("-c", "import luong, sys; luong.attention; assert 'torch._dynamo' not in sys.modules")


def test_the_core_does_not_import_the_toolkit() -> None:
    code = (
        "import luong, sys; tools = {'load', 'plot_alignment'}; "
        "[getattr(luong, name) for name in luong.__all__ if name not in tools]; "
        "extra = {'accelerate', 'tokenizers', 'rich', 'yaml', 'safetensors'}; "
        "print(*[m for m in sys.modules if m.split('.')[0] in extra or 'toolkit' in m])"
    )
    assert python("-c", code) == "\n"


@pytest.mark.parametrize(
    "page", ["README.md", "docs/operators.md", "docs/own_loop.md", "docs/adding.md"]
)
def test_the_python_of_a_page_runs(page: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    names: dict[str, object] = {}  # later blocks go on from earlier ones
    for block in blocks:
        exec(compile(block, page, "exec"), names)


def test_the_readme_spells_out_what_make_runs() -> None:
    makefile = (ROOT / "Makefile").read_text().replace("$(BIN)", ".venv/bin")
    makefile = makefile.replace("$(RUN)", "runs/g2p-en").replace("$(PYTHON)", "python3")
    commands = re.findall(r"^    ((?:python3|\.venv/bin).+)$", README, re.MULTILINE)
    assert len(commands) > 6
    for command in " && ".join(commands).split(" && "):
        assert command.replace("install", "install -q") in makefile or command in makefile, command


def test_the_version_is_the_same_everywhere() -> None:
    from luong import __version__

    assert f'\nversion = "{__version__}"\n' in (ROOT / "pyproject.toml").read_text()
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_pythons_that_are_declared_are_tested() -> None:
    """The public CI runs the oldest and the newest; the classifiers lie between."""
    metadata = (ROOT / "pyproject.toml").read_text()
    declared = re.findall(r"Programming Language :: Python :: (3\.\d+)", metadata)
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    oldest, newest = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert f'\nrequires-python = ">={oldest}"\n' in metadata
    assert f'\npython_version = "{oldest}"\n' in metadata  # mypy's
    assert declared == [f"3.{minor}" for minor in range(10, 10 + len(declared))]
    assert declared[0] == oldest
    assert int(declared[-1][2:]) <= int(newest[2:])
    assert f"needs Python {oldest} or newer" in README


@pytest.mark.parametrize("page", ["README.md", *sorted(f"docs/{p.name}" for p in DOCS)])
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\((?!http)([^)#]+)[^)]*\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target
