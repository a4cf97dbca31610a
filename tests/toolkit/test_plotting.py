from __future__ import annotations

from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from luong.toolkit import plotting
from luong.toolkit.errors import ToolkitError
from luong.toolkit.translating import Translation


def translation(source: str, target: str) -> Translation:
    rows, columns = target.split(), list(source)
    weights = torch.eye(len(rows), len(columns))
    return Translation(target, columns, rows, weights, [], 0.0, True)


def test_the_picture_says_what_the_weights_say() -> None:
    figure = Figure()
    plotting.draw(translation("a b", "X Y"), figure)
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "␣", "b"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["X", "Y"]
    assert axes.images[0].get_array().tolist() == [[1, 0, 0], [0, 1, 0]]
    assert axes.images[0].get_clim() == (0, 1)


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_formats(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"picture{suffix}"
    plotting.save(translation("abc", "A B C"), path)
    start = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix]
    assert path.read_bytes().startswith(start)


def test_longer_words_get_a_wider_picture(tmp_path: Path) -> None:
    widths = []
    for word in ("ab", "ab" * 20):
        plotting.save(translation(word, "A B"), tmp_path / "x.png")
        with Image.open(tmp_path / "x.png") as image:
            widths.append(image.width)
    assert widths[1] > 3 * widths[0]


def test_scripts_of_the_default_fonts_need_no_warning(tmp_path: Path) -> None:
    plotting.save(translation("λόγος", "مرحبا Привет ə"), tmp_path / "x.png")


def test_a_character_that_no_font_has_is_named(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"no font on this machine has .* \(U\+10FFFD\)"):
        plotting.save(translation("a\U0010fffd", "A"), tmp_path / "x.png")
    assert (tmp_path / "x.png").exists()


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [("x.txt", "A", r"ends in \.png, \.svg, \.pdf"), ("x.png", "", "the output is empty")],
)
def test_what_cannot_be_drawn(tmp_path: Path, name: str, target: str, message: str) -> None:
    with pytest.raises(ToolkitError, match=message):
        plotting.save(translation("ab", target), tmp_path / name)
