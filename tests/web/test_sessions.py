"""Sessions and links on disk: what ends them, and what a full disk or a killed kernel leaves of them."""

import time
from pathlib import Path

import pytest

from agentos.private_files import UnsafeFile
from agentos.userland.web.links import DIRECTORY, TOKENS, find_link, make_link, publish_url
from agentos.userland.web.sessions import FILE, IDLE_SECONDS, Sessions
from tests.support.kernel import Kernel
from tests.web.conftest import DASHBOARD, browser_of


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """``dashboard/`` of a state directory."""
    make_link("http://127.0.0.1:1", tmp_path, "readonly")
    return tmp_path / DIRECTORY


def log_in(sessions: Sessions) -> str:
    link = make_link("http://127.0.0.1:1", sessions.place.parent, "readonly")
    cookie = sessions.redeem(link.partition("token=")[2], "a browser")
    assert cookie is not None
    return cookie


def test_a_session_isnt_used_after_its_time(place: Path) -> None:
    sessions = Sessions.load(place)
    cookie = log_in(sessions)
    session = sessions.find(cookie)
    assert session is not None
    assert not session.is_over()

    session.used = time.time() - IDLE_SECONDS - 1

    assert session.is_over()
    assert sessions.find(cookie) is None


def test_a_session_that_was_ended_on_a_full_disk_doesnt_come_back(place: Path) -> None:
    sessions = Sessions.load(place)
    kept, lost = log_in(sessions), log_in(sessions)
    session = sessions.find(lost)
    assert session is not None
    (place / f"{FILE}.new").mkdir()  # as if nothing could be written

    sessions.revoke(session.id)

    assert session.is_over()
    assert sessions.find(lost) is None
    assert sessions.find(kept) is not None
    assert Sessions.load(place).find(lost) is None


def test_damaged_sessions_log_no_browser_in(place: Path) -> None:
    for damaged in (
        '[{"digest": "x"}]',
        "[1]",
        "{",
        '[{"id":"a","digest":"b","level":"root","started":1,"used":9e99,"browser":""}]',
    ):
        (place / FILE).write_text(damaged)
        assert Sessions.load(place).live() == []


def test_a_symlink_for_the_tokens_isnt_followed(place: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (place / TOKENS).rename(elsewhere)
    (place / TOKENS).symlink_to(elsewhere)

    with pytest.raises(UnsafeFile, match="symlink"):
        make_link("http://127.0.0.1:1", tmp_path, "unrestricted")


def test_a_link_names_no_port_that_the_kernel_doesnt_have(place: Path) -> None:
    """Another user's program may have it by now: it would get the token, and the browser's cookie."""
    with publish_url(place, "http://127.0.0.1:1"):
        left = (place / "listening").read_text()
        assert find_link(place.parent, "readonly") is not None
    assert find_link(place.parent, "readonly") is None
    (place / "listening").write_text(left)  # by a kernel that was killed
    assert find_link(place.parent, "readonly") is None


@pytest.mark.usefixtures("kernels")
def test_a_directory_that_others_can_write_to_ends_the_dashboard_and_not_the_kernel() -> None:
    kernel = Kernel(DASHBOARD)
    try:
        kernel.wait_ready()
        kernel.wait_line("dashboard: http")
        kernel.stop()
        (kernel.state_dir / DIRECTORY).chmod(0o777)
        kernel.start_again()
        kernel.wait_line("there is no dashboard: .*chmod go-w")
        assert kernel.answers()
        kernel.stop()
    finally:
        kernel.clean_up()


def test_a_disk_that_takes_no_sessions_keeps_no_browser_out(kernel: Kernel) -> None:
    obstacle = kernel.state_dir / DIRECTORY / f"{FILE}.new"
    obstacle.mkdir()
    try:
        browser = browser_of(kernel)
        assert browser.get("/")[0] == 200
        kernel.wait_line("the dashboard's sessions can't be stored")
    finally:
        obstacle.rmdir()


def test_a_log_file_keeps_no_token(kernel: Kernel) -> None:
    line = kernel.wait_line("dashboard: ")
    assert "http://127.0.0.1:" in line
    assert "token" not in kernel.said
