from __future__ import annotations

import math
from pathlib import Path

import pytest

from luong.toolkit.errors import ToolkitError
from luong.toolkit.inference import pictures
from luong.toolkit.training import curves


def test_curves(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(
        "update,train_loss,dev_loss,dev_per,learning_rate,seconds,epoch\n"
        "100,2.5,2.25,50,0.1,1,1\n200,1.5,,25,0.05,2,1\n"
    )
    figure = curves.draw(path)
    panels = {
        axes.get_ylabel(): {
            line.get_label(): (list(line.get_xdata()), list(line.get_ydata()))
            for line in axes.lines
        }
        for axes in figure.axes
    }
    assert list(panels) == ["loss", "dev PER", "learning rate"]
    assert panels["loss"]["train loss"] == ([100, 200], [2.5, 1.5])
    assert panels["loss"]["dev loss"][1] == pytest.approx([2.25, float("nan")], nan_ok=True)
    assert list(panels["dev PER"].values()) == [([100, 200], [50, 25])]
    assert [axes.get_legend() is not None for axes in figure.axes] == [True, False, False]


@pytest.mark.parametrize("text", ["", "update,dev_loss\n", "update,seconds\n1,2\n", "a,b\n1,2\n"])
def test_no_curves(tmp_path: Path, text: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(text)
    with pytest.raises(ToolkitError, match=r"metrics\.csv: no curves in it"):
        curves.draw(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"update,dev_loss\n1,2\n2,x\n", r":3: dev_loss: expected a number, got 'x'"),
        (b"update,dev_loss\n1,2,3\n", r":2: expected 2 cells, got 3"),
        (b"update,dev_loss,dev_loss\n1,2,3\n", r"two columns 'dev_loss'"),
        (b"update,dev_loss\n1,\xff\n", r"not a table: 'utf-8'"),
        (b"update," + b"1" * 200_000, r"not a table: field larger than"),
        (",".join(f"c{k}" for k in range(300)).encode(), r"at most 50 columns and 100,000 rows"),
        (b"update,x\n" + b"1,2\n" * 100_001, r"at most 50 columns and 100,000 rows"),
        (b"\n" * (1 << 24) + b"\n", r"expected at most 16,777,216 bytes"),
    ],
)
def test_what_is_no_table(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(content)
    with pytest.raises(ToolkitError, match=message) as caught:
        curves.draw(path)
    assert str(caught.value).startswith(str(path))


def test_names_are_no_formulas_and_values_may_be_anything(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("update,train_$\\frac$,dev_$\\frac$,a\x1b,b\n1,nan,inf,-1e308,\n2,3,4,1e308,\n")
    figure = curves.draw(path)
    pictures.save(figure, tmp_path / "x.svg")
    picture = (tmp_path / "x.svg").read_text(encoding="utf-8")
    assert picture.count("<!-- $\\FRAC$ -->") == 1
    assert "<!-- dev $\\FRAC$ -->" in picture
    assert "<!-- A\\X1B -->" in picture
    (line,) = figure.axes[1].lines
    assert all(map(math.isnan, line.get_ydata()))


def test_a_long_training_makes_no_huge_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    rows = "".join(f"{k},{k % 7}\n" for k in range(20_000))
    path.write_text(f"update,dev_loss\n{rows}")
    pictures.save(curves.draw(path), tmp_path / "x.svg")
    assert (tmp_path / "x.svg").stat().st_size < 500_000
