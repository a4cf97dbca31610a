from __future__ import annotations

import os
import subprocess
import sys
import unicodedata
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import ft2font, pyplot
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from PIL import Image

import luong
from luong.toolkit.errors import ToolkitError
from luong.toolkit.inference import fonts, pictures
from luong.toolkit.inference.pictures import Picture
from luong.toolkit.inference.translator import Translation


def picture(source: str, target: str) -> Picture:
    rows = target.split()
    return Picture(torch.eye(len(rows), len(source)), list(source), rows)


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    pyplot.close("all")


@pytest.fixture
def hangul(tmp_path: Path) -> Iterator[str]:
    """A font that draws 한 and ㅎ, each as a full square, and nothing else."""
    pen = TTGlyphPen(None)
    for k, corner in enumerate([(0, 0), (0, 1000), (1000, 1000), (1000, 0)]):
        (pen.lineTo if k else pen.moveTo)(corner)
    pen.closePath()
    glyph, path = pen.glyph(), tmp_path / "square.ttf"
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder([".notdef", "square"])
    builder.setupCharacterMap({ord("한"): "square", ord("ㅎ"): "square"})
    builder.setupGlyf({".notdef": TTGlyphPen(None).glyph(), "square": glyph})
    builder.setupHorizontalMetrics({".notdef": (1000, 0), "square": (1000, 0)})
    builder.setupHorizontalHeader(ascent=1000, descent=0)
    builder.setupNameTable({"familyName": "Square", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)
    fontManager.addfont(path)
    yield "Square"
    fontManager.ttflist[:] = [entry for entry in fontManager.ttflist if entry.name != "Square"]


def test_the_picture_says_what_the_weights_say() -> None:
    axes = Figure().subplots()
    assert luong.plot_alignment(picture("a b", "X Y"), ax=axes, title="T") is axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "␣", "b"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["X", "Y"]
    assert axes.images[0].get_array().tolist() == [[1, 0, 0], [0, 1, 0]]
    assert axes.images[0].get_clim() == (0, 1)
    assert axes.get_xlabel() == "T"
    low, high = axes.get_ylim()
    assert low > high  # the target runs downwards


@pytest.mark.parametrize(
    "weights",
    [
        [[1, 0]],
        np.array([[1.0, 0.0]]),
        torch.tensor([[1.0, 0.0]], requires_grad=True),
        torch.tensor([[1.0, 0.0]], dtype=torch.bfloat16),
    ],
)
def test_weights_of_any_kind(weights: object) -> None:
    axes = luong.plot_alignment(weights, ["a", "b"], ["X"])
    assert axes.images[0].get_array().tolist() == [[1, 0]]
    assert axes.figure in [pyplot.figure(number) for number in pyplot.get_fignums()]  # is shown


def test_a_translation_brings_its_tokens() -> None:
    translation = Translation("X", ["a", "b"], ["X"], torch.tensor([[0.25, 0.75]]), [], 0.0, True)
    axes = luong.plot_alignment(translation)
    assert axes.images[0].get_clim() == (0, 1)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b"]
    axes = luong.plot_alignment(translation, source=["c", "d"])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["c", "d"]


@pytest.mark.parametrize(
    ("weights", "source", "message"),
    [
        (torch.ones(2), "ab", r"weights: expected \(n, m\), neither 0, got shape \(2,\)"),
        (torch.ones(1, 0), "", r"weights: .* got shape \(1, 0\)"),
        (torch.ones(1, 2), "abc", "source: expected 2 tokens, as the weights have, got 3"),
        (torch.ones(2, 2), "ab", "target: expected 2 tokens, as the weights have, got 1"),
        (torch.ones(1, 2), None, "source: expected 2 tokens, as the weights have, got none"),
    ],
)
def test_what_does_not_fit(weights: torch.Tensor, source: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        luong.plot_alignment(weights, source, ["X"])


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf", ".PNG"])
def test_formats(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"picture{suffix}"
    pictures.save(pictures.figure_of(picture("abc", "A B C")), path)
    start = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix.lower()]
    assert path.read_bytes().startswith(start)


def test_longer_words_get_a_wider_picture(tmp_path: Path) -> None:
    widths = []
    for word in ("ab", "ab" * 20):
        pictures.save(pictures.figure_of(picture(word, "A B")), tmp_path / "x.png")
        with Image.open(tmp_path / "x.png") as image:
            widths.append(image.width)
    assert widths[1] > 3 * widths[0]


def test_long_labels_stand_upright_and_do_not_meet() -> None:
    words = ["attention", "is", "all", "alignment"]
    figure = pictures.figure_of(Picture(torch.eye(2, 4), words, ["X", "Y"]))
    figure.draw_without_rendering()
    assert_apart(figure)
    assert {label.get_rotation() for label in figure.axes[0].get_xticklabels()} == {90}
    figure = pictures.figure_of(picture("ab", "X Y"))
    assert {label.get_rotation() for label in figure.axes[0].get_xticklabels()} == {0}


def assert_apart(figure: Figure) -> None:
    """No label lies on another, or outside the figure."""
    boxes = [
        label.get_window_extent()
        for axes in figure.axes
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels())
        if label.get_text()
    ]
    for k, box in enumerate(boxes):
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in boxes[:k])


def test_a_sheet_has_cells_of_one_size() -> None:
    words = Picture(torch.eye(3, 2), ["interpretation", "of"], ["die", "Auslegung", "von"])
    four = [picture("abcde", "A B C"), words, picture("a", "longest"), picture("ab", "A B")]
    figure = pictures.sheet(four, ["1", "2", "3", "4"])
    figure.draw_without_rendering()
    assert len(figure.axes) == 4
    sizes = [axes.get_window_extent() for axes in figure.axes]
    cells = [
        size / count
        for box, some in zip(sizes, four, strict=True)
        for size, count in ((box.width, len(some.source)), (box.height, len(some.target)))
    ]
    assert cells == pytest.approx([cells[0]] * 8)
    assert not any(a.overlaps(b) for k, a in enumerate(sizes) for b in sizes[:k])
    assert_apart(figure)
    first, second, third, _ = sizes
    assert first.y1 > third.y1  # row by row
    assert first.x0 < second.x0
    assert [axes.get_xlabel() for axes in figure.axes] == ["1", "2", "3", "4"]
    wide = pictures.sheet(four[2:] * 2, ["a rather long title of a small alignment"] * 4)
    wide.draw_without_rendering()
    boxes = [axes.xaxis.label.get_window_extent() for axes in wide.axes]
    assert not any(a.overlaps(b) for k, a in enumerate(boxes) for b in boxes[:k])
    assert all(wide.bbox.x0 <= box.x0 < box.x1 <= wide.bbox.x1 for box in boxes)
    one_row = pictures.sheet(four, columns=9)
    one_row.draw_without_rendering()
    tops = {round(axes.get_window_extent().y1) for axes in one_row.axes}
    assert len(one_row.axes) == 4
    assert len(tops) <= 2  # labels above may be of two heights


def test_scripts_of_the_default_fonts_need_no_warning(tmp_path: Path) -> None:
    if not hasattr(ft2font, "__libraqm_version__"):
        pytest.skip("this matplotlib does not shape Arabic")
    pictures.save(pictures.figure_of(picture("λόγος", "مرحبا Привет ə")), tmp_path / "x.png")


def test_arabic_is_joined_and_runs_from_right_to_left() -> None:
    """Shaped letters are narrower than the same letters one by one."""
    if not hasattr(ft2font, "__libraqm_version__"):
        pytest.skip("this matplotlib does not shape Arabic")
    axes = luong.plot_alignment(picture("ab", "بببب"[:4]))
    joined = axes.get_yticklabels()[0].get_window_extent().width
    apart = luong.plot_alignment(picture("ab", "\u200c".join("بببب")))
    assert joined < 0.8 * apart.get_yticklabels()[0].get_window_extent().width


def test_without_shaping_arabic_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ft2font, "__libraqm_version__", raising=False)
    with pytest.warns(UserWarning, match=r"this version of matplotlib .* 3\.11 and newer"):
        fonts.families(["abc", "مرحبا"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fonts.families(["abc", "λόγος"])


def test_a_font_that_has_the_script_is_found(hangul: str) -> None:
    assert fonts.families(["a", "한"])[1:] == [hangul]
    axes = luong.plot_alignment(picture("a한", "A"))
    assert hangul in axes.get_xticklabels()[1].get_fontfamily()
    canvas = axes.figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    canvas.draw()
    label = axes.get_xticklabels()[1].get_window_extent()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]
    height = pixels.shape[0]
    inside = pixels[height - int(label.y1) + 2 : height - int(label.y0) - 2]
    inside = inside[:, int(label.x0) + 2 : int(label.x1) - 2]
    assert (inside == 0).mean() > 0.5  # the square, not the outline of a box


def warned(texts: list[str]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fonts.families(texts)
    return [str(warning.message) for warning in caught]


def test_scripts_that_no_font_has_are_named() -> None:
    ideographs, hangul, none = warned(["a국어語", "\U0010fffd"])  # one a script
    assert "no font on this machine has 국 어 (HANGUL): drawn as boxes" in hangul
    assert hangul.endswith("such as Noto Sans CJK KR")
    assert "has 語 (CJK): drawn as boxes" in ideographs
    assert "(U+10FFFD)" in none
    assert none.endswith("such as one of the Noto fonts")


def test_a_warning_is_short() -> None:
    (warning,) = warned([chr(code) for code in range(0xAC00, 0xAC40)])
    assert "가 각 갂 갃 간 갅 갆 갇 ... (HANGUL)" in warning


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x.txt", r"x\.txt: .* ends in \.png, \.svg, \.pdf"),
        ("no/x.png", r"no/x\.png: there is no folder .*no"),
        ("folder.png", r"folder\.png: expected a file, got a folder"),
    ],
)
def test_where_no_picture_can_be(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ToolkitError, match=message):
        pictures.save(Figure(), tmp_path / name)


@pytest.mark.parametrize(("n", "m"), [(300, 300), (1, 900), (900, 1)])
def test_pictures_are_bounded(tmp_path: Path, n: int, m: int) -> None:
    tokens = [f"{'long ' * 50}{k}" for k in range(m)], [str(k) for k in range(n)]
    figure = pictures.figure_of(Picture(torch.eye(n, m), *tokens))
    pictures.save(figure, tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as image:
        assert image.width * image.height <= 1.01 * (1 << 24)
    figure.draw_without_rendering()
    assert_apart(figure)
    columns, rows = (
        [label.get_text() for label in labels]
        for labels in (figure.axes[0].get_xticklabels(), figure.axes[0].get_yticklabels())
    )
    assert len(columns) <= 100 >= len(rows)  # not all can be read
    every = -(-n // 100)
    assert rows == tokens[1][::every]
    assert max(map(len, columns)) == 40
    assert columns[0].endswith("…")


@pytest.mark.parametrize("suffix", [".svg", ".pdf"])
def test_files_of_large_pictures_are_small(tmp_path: Path, suffix: str) -> None:
    names = ["word"] * 400
    pictures.save(
        pictures.figure_of(Picture(torch.rand(400, 400), names, names)),
        path := (tmp_path / f"x{suffix}"),
    )
    assert path.stat().st_size < 2_000_000


def test_a_sheet_of_many_is_drawn_with_fewer_dots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "_PIXELS", 1 << 16)
    figure = pictures.sheet([picture("abcde", "A B C")] * 4)
    with pytest.warns(UserWarning, match=r"x\.png: 4 pictures .* a \.pdf or \.svg is sharp"):
        pictures.save(figure, tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as image:
        assert image.width * image.height <= 1.01 * (1 << 16)


@pytest.mark.parametrize("text", [r"$\frac$", "$", r"a\b", "$$", "_x^2"])
def test_texts_are_no_formulas(tmp_path: Path, text: str) -> None:
    figure = pictures.sheet([Picture(torch.eye(1), [text], [text])] * 2, [text, "other"])
    pictures.save(figure, tmp_path / "x.svg")
    assert f"<!-- {text} -->" in (tmp_path / "x.svg").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore:no font on this machine", "ignore:Glyph")
def test_syllables_stand_over_their_letters() -> None:
    tokens = list(unicodedata.normalize("NFD", "한éa"))
    axes = luong.plot_alignment(torch.eye(6), tokens, tokens)
    axes.figure.canvas.draw()
    ticks = {
        axis: [label.get_window_extent() for label in axis.get_ticklabels()]
        for axis in (axes.xaxis, axes.yaxis)
    }
    above, aside = axes.texts[:2], axes.texts[2:]
    assert [text.get_text() for text in above] == ["한", "é"]
    for (first, last), whole in zip([(0, 2), (3, 4)], above, strict=True):
        box, labels = whole.get_window_extent(), ticks[axes.xaxis]
        assert box.y0 >= max(label.y1 for label in labels)
        assert labels[first].x0 < (box.x0 + box.x1) / 2 < labels[last].x1
    for (first, last), whole in zip([(0, 2), (3, 4)], aside, strict=True):
        box, labels = whole.get_window_extent(), ticks[axes.yaxis]
        assert whole.get_text().strip() in ("한", "é")
        assert box.x1 <= min(label.x0 for label in labels)
        assert labels[first].y1 > (box.y0 + box.y1) / 2 > labels[last].y0
    lines = [artist for artist in axes.get_children() if type(artist).__name__ == "Line2D"]
    assert len(lines) == 4


def test_a_matplotlibrc_changes_nothing(tmp_path: Path) -> None:
    """Not even what a folder holds that somebody sent."""
    (tmp_path / "matplotlibrc").write_text("text.usetex: true\nsavefig.dpi: 9999\nnonsense: 1\n")
    code = (
        "import luong.toolkit.inference.pictures as p; from pathlib import Path\n"
        "with p.settings(): p.save(p.figure_of(p.Picture([[1]], ['$'], ['b'])), Path('x.png'))"
    )
    environment = {**os.environ, "MPLBACKEND": "nonsense"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "matplotlibrc").write_bytes(b"\xff")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "ToolkitError: matplotlib does not start: 'utf-8' codec" in done.stderr
