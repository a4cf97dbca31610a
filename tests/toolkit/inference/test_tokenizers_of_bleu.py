"""Tokenizers of BLEU: which one fits, what it needs, and that this is said before any work."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from luong.toolkit.command.cli import main
from luong.toolkit.errors import ToolkitError
from luong.toolkit.inference import measures

JAPANESE = "私は昨日、友達と一緒に映画を見に行きました。"
CHINESE = "我昨天和朋友一起去看了一场电影。"
THAI = "เมื่อวานฉันไปดูหนังกับเพื่อน"


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ([JAPANESE], "ja-mecab"),
        (["カタカナばかりのぶんしょう"], "ja-mecab"),
        ([CHINESE, CHINESE + " CPU 2"], "zh"),
        ([THAI], "char"),
        (["我 昨天 和 朋友 一起 去 看 了 一 场 电影"], None),  # somebody has put spaces
        (["어제 친구와 함께 영화를 보러 갔습니다"], None),
        (["I saw a film, 昨日の映画館, yesterday with a friend of mine"], None),
        (["AH T EH N SH AH N"], None),
        (["", "  "], None),
        ([], None),
    ],
)
def test_the_tokenizer_that_fits(lines: list[str], name: str | None) -> None:
    assert measures.fitting_tokenizer(lines) == name


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("ja-mecab", "MeCab", "sacrebleu[ja]"),
        ("ko-mecab", "mecab_ko", "sacrebleu[ko]"),
        ("flores101", "sentencepiece", "sentencepiece"),
        ("flores200", "sentencepiece", "sentencepiece"),
    ],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str, package: str
) -> None:
    for loaded in [name for name in sys.modules if name.startswith("sacrebleu.tokenizers.")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ToolkitError) as caught:
        measures.check_tokenizer(name)
    assert str(caught.value) == f"--tokenize {name} needs a package: pip install {package!r}"


def test_a_model_that_cannot_be_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(tokenize: str) -> None:
        raise OSError("no network")

    offline.TOKENIZERS = measures.BLEU.TOKENIZERS  # type: ignore[attr-defined]
    monkeypatch.setattr(measures, "BLEU", offline)
    with pytest.raises(ToolkitError, match=r"^--tokenize spm: its model, .* \(no network\)$"):
        measures.check_tokenizer("spm")


def test_a_wrong_tokenizer_is_refused_before_a_model_is_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["evaluate", "no-model", "--tokenize", "words", "--metrics", "wer"]) == 2
    assert capsys.readouterr().err.startswith("luong: --tokenize: expected one of 13a, ")


def test_evaluate_says_which_tokenizer_fits(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    outputs, target = tmp_path / "outputs", tmp_path / "target"
    outputs.write_text(CHINESE.replace("昨天", "今天") + "\n", encoding="utf-8")
    target.write_text(CHINESE + "\n", encoding="utf-8")
    files = ["--hypotheses", str(outputs), "--target", str(target)]
    assert main(["evaluate", *files]) == 0
    out, err = capsys.readouterr()
    assert "BLEU 0.00" in out
    assert err == (
        "luong: BLEU means little here: its tokenizer, 13a, splits at spaces, which these "
        "references do not have between words; --tokenize zh fits them\n"
    )
    for options in (["--tokenize", "zh"], ["--metrics", "cer"]):
        assert main(["evaluate", *files, *options]) == 0
        assert capsys.readouterr().err == ""
