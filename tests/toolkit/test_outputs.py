"""Where results are written: files whole, everything else as it is."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from luong.toolkit import outputs
from luong.toolkit.errors import ToolkitError, UsageError
from luong.toolkit.outputs import destination, output
from luong.toolkit.torchrun import Process


def write(path: Path, text: str = "é\n") -> None:
    with destination(path) as file:
        file.write(text)


def test_a_device_is_written_to_and_stays() -> None:
    leader, follower = os.openpty()
    path = Path(os.ttyname(follower))
    write(path)
    assert path.is_char_device()
    assert os.read(leader, 100) == "é\r\n".encode()
    os.close(leader)
    os.close(follower)


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    path, found = tmp_path / "pipe", list[bytes]()
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: found.append(path.read_bytes()))
    reader.start()
    write(path)
    reader.join(10)
    assert found == ["é\n".encode()]
    assert path.is_fifo()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["/dev/fd/{}", "/proc/self/fd/{}"])
def test_an_open_file_is_written_to_where_it_stands(tmp_path: Path, name: str) -> None:
    if not Path(name.format(0)).exists():
        pytest.skip("this system has no such names")
    path, link = tmp_path / "log", tmp_path / "link"
    path.write_text("first\n")
    with path.open("a") as file:
        link.symlink_to(name.format(file.fileno()))
        write(Path(name.format(file.fileno())))
        write(link)
    assert path.read_text(encoding="utf-8") == "first\né\né\n"
    assert link.is_symlink()


def test_a_link_stays_and_what_it_leads_to_is_replaced_whole(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link, chain = tmp_path / "there" / "target", tmp_path / "link", tmp_path / "chain"
    link.symlink_to("there/target")
    chain.symlink_to("link")
    write(link, "new\n")  # the link led to nothing
    assert target.read_text() == "new\n"
    with destination(chain) as file:
        file.write("newer\n")
        file.flush()
        assert target.read_text() == "new\n"
    assert target.read_text() == "newer\n"
    assert link.is_symlink()
    assert chain.is_symlink()
    assert [path.name for path in target.parent.iterdir()] == ["target"]


def test_a_folder_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match=f"^{tmp_path}: not written: Is a directory$"):
        write(tmp_path)


def test_pictures_go_the_same_way(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("picture")
    with output(link) as file:
        file.write(b"\x89PNG")
    assert (tmp_path / "picture").read_bytes() == b"\x89PNG"
    assert link.is_symlink()


def test_several_processes_refuse_what_they_cannot_join(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reason = f"^--output {path}: several processes can only write to a regular file$"
    with pytest.raises(UsageError, match=reason), destination(path, Process(0, 2)):
        pass
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("port", "reason"),
    [("1", "The client socket has timed out"), ("99999", "port must have value")],
)
def test_processes_that_cannot_meet_say_so_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: str, reason: str
) -> None:
    there = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in there.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(outputs, "_ALL_STARTED", timedelta(seconds=1))
    message = f"^MASTER_ADDR=127.0.0.1, MASTER_PORT={port}: the processes did not meet: {reason}"
    with pytest.raises(ToolkitError, match=message), destination(tmp_path / "o", Process(1, 2)):
        raise AssertionError("work was begun")
    assert not list(tmp_path.iterdir())


def test_output_to_stdout_by_its_name_appends(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\n")
    code = (
        "from pathlib import Path; from luong.toolkit.outputs import destination\n"
        "with destination(Path('/dev/stdout')) as file: file.write('second\\n')"
    )
    with log.open("a") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True)
    assert log.read_text() == "first\nsecond\n"
