"""Where reports are written: regular files by a rename, anything else directly."""

import os
import threading
from pathlib import Path

import pytest

from share_state.report.console import ReportError, check_report_paths, write_report


def test_a_symbolic_link_stays_and_its_target_is_replaced(tmp_path: Path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there/page.html").write_text("old")
    (tmp_path / "page.html").symlink_to("there/page.html")
    write_report(str(tmp_path / "page.html"), "new")
    assert (tmp_path / "page.html").is_symlink()
    assert (tmp_path / "there/page.html").read_text() == "new"
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["page.html"]


def test_a_pipe_is_written_to(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    found = list[str]()
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_text()))
    reader.start()
    write_report(str(tmp_path / "pipe"), "page")
    reader.join()
    assert found == ["page"]
    assert (tmp_path / "pipe").is_fifo()


def test_a_device_stays_a_device():
    write_report("/dev/null", "page")
    assert Path("/dev/null").is_char_device()


def test_a_full_device_is_one_line():
    with pytest.raises(ReportError, match=r"^/dev/full: cannot be written \(No space left on device\)"):
        write_report("/dev/full", "page")


def test_two_reports_in_one_file_are_refused(tmp_path: Path):
    (tmp_path / "link").symlink_to("page.html")
    with pytest.raises(ReportError, match="is given for two reports; give each its own file"):
        check_report_paths(str(tmp_path / "page.html"), None, str(tmp_path / "link"))
    check_report_paths("/dev/null", "/dev/null")
