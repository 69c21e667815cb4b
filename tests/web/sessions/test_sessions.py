"""Sessions and links on disk: what ends them, and what a full disk or a killed kernel leaves of them."""

import json
import os
import time
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace as evolve

from agentos.private_files import UnsafeFile
from agentos.userland.web import links
from agentos.userland.web.links import DIRECTORY, LINKS, find_link, make_link, publish_url
from agentos.userland.web.proof import Key, Opening, decode_opening
from agentos.userland.web.sessions import FILE, IDLE_SECONDS, Session, Sessions
from tests.support.kernel import Kernel
from tests.web.conftest import DASHBOARD, browser_of, key_of

RUN, LISTENS, URL = "0123456789abcdef", "127.0.0.1 1", "http://127.0.0.1:1"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """``dashboard/`` of a state directory."""
    make_link(URL, RUN, tmp_path, "viewer")
    return tmp_path / DIRECTORY


@pytest.fixture
def sessions(place: Path) -> Sessions:
    return Sessions.load(place, RUN, LISTENS)


def opening_of(link: str) -> Opening:
    return Opening("link", key_of(link)["id"], "", "x")


def log_in(sessions: Sessions) -> tuple[Session, Key, Key]:
    """A session, with its keys for this run and for a page."""
    entered = sessions.enter(opening_of(make_link(URL, RUN, sessions.place.parent, "viewer")), "a browser")
    assert entered is not None
    session, (run, tab) = entered
    return session, run, tab


def knows(sessions: Sessions, key: Key) -> bool:
    """Whether the sessions can prove that they know a key."""
    return sessions.find_key(Opening(key.use, key.id, key.salt, "x")) == key.key


def test_a_session_that_is_revoked_while_a_page_uses_it_stays_over(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread revokes it after the page's use was judged, and before it is noted."""
    session, run, tab = log_in(sessions)

    def judge_and_revoke(session: Session) -> bool:
        monkeypatch.undo()
        is_over = session.is_over()
        sessions.revoke(session.id)
        return is_over

    monkeypatch.setattr(Session, "is_over", judge_and_revoke)
    session.use()

    assert session.is_over()
    assert not knows(sessions, run)
    assert not knows(sessions, tab)


def test_a_session_isnt_used_after_its_time(sessions: Sessions) -> None:
    session, run, tab = log_in(sessions)
    assert not session.is_over()
    assert knows(sessions, run)

    session.used = time.time() - IDLE_SECONDS - 1
    session.use()

    assert session.is_over()
    assert not knows(sessions, run)
    assert not knows(sessions, tab)


def test_a_link_with_an_end_lasts_until_then_used_or_not(sessions: Sessions) -> None:
    until = time.time() + 3600
    link = make_link(URL, RUN, sessions.place.parent, "approver", until)
    entered = sessions.enter(opening_of(link), "a browser")
    assert entered is not None
    session, keys = entered
    assert (session.id, session.role, session.until) == (key_of(link)["id"], "approver", until)

    session.used = time.time() - IDLE_SECONDS - 1
    assert not session.is_over()
    session.until = time.time() - 1
    session.use()
    assert session.is_over()
    assert not any(knows(sessions, key) for key in keys)


def test_a_link_whose_end_has_come_logs_in_no_browser(sessions: Sessions) -> None:
    for role in ("operator", "viewer"):
        link = make_link(URL, RUN, sessions.place.parent, role, time.time() - 1)
        assert sessions.find_key(opening_of(link)) is None
        assert sessions.enter(opening_of(link), "a browser") is None
        assert key_of(link)["id"] not in [one["id"] for one in sessions.describe()]


def test_a_link_is_for_one_run_of_the_kernel(place: Path) -> None:
    """One that was clicked while the kernel was down was shown to the program that has its port."""
    link = make_link(URL, RUN, place.parent, "operator")
    later = Sessions.load(place, "fedcba9876543210", LISTENS)

    assert later.find_key(opening_of(link)) is None
    assert later.enter(opening_of(link), "a browser") is None
    assert Sessions.load(place, RUN, LISTENS).find_key(opening_of(link)) == key_of(link)["key"]


def test_of_two_browsers_with_one_link_one_is_let_in(sessions: Sessions) -> None:
    opening = opening_of(make_link(URL, RUN, sessions.place.parent, "viewer"))

    assert sessions.find_key(opening) == sessions.find_key(opening)
    assert sessions.enter(opening, "the first") is not None
    assert sessions.enter(opening, "the second") is None


def test_no_name_of_a_key_leads_out_of_the_links(sessions: Sessions) -> None:
    (sessions.place / "elsewhere").write_text(f"operator key {RUN} never")
    for name in ("../elsewhere", "..", ".", "/etc/passwd", "a/b", "x" * 65, "a\n", "\0"):
        with pytest.raises(msgspec.ValidationError):
            decode_opening(json.dumps({"use": "link", "id": name, "salt": "", "nonce": ""}))
    assert sessions.find_key(Opening("link", "", "", "")) is None


def test_after_a_restart_only_pages_that_stayed_open_are_known(place: Path, sessions: Sessions) -> None:
    _, run, tab = log_in(sessions)
    later = Sessions.load(place, "fedcba9876543210", LISTENS)

    assert knows(later, tab)
    assert not knows(later, run)
    assert not knows(later, evolve(run, salt="fedcba9876543210"))


def test_at_other_addresses_no_former_page_is_known(place: Path, sessions: Sessions) -> None:
    """What has the former address may pass on all that it is sent, proofs included."""
    _, _, tab = log_in(sessions)
    for listens in ("127.0.0.1 2", "127.0.0.1 1 ::1 1", "127.0.0.2 1"):
        assert not knows(Sessions.load(place, RUN, listens), tab), listens


def test_a_key_is_for_its_use_and_salt(sessions: Sessions) -> None:
    _, run, tab = log_in(sessions)
    for wrong in (
        evolve(tab, salt=tab.salt[:-1]),
        evolve(tab, use="run"),
        evolve(run, use="tab"),
        evolve(run, id="none"),
    ):
        assert not knows(sessions, wrong), wrong


def test_a_session_that_was_ended_on_a_full_disk_doesnt_come_back(place: Path, sessions: Sessions) -> None:
    (_, kept, _), (session, lost, tab) = log_in(sessions), log_in(sessions)
    (place / f"{FILE}.new").mkdir()  # as if nothing could be written

    sessions.revoke(session.id)
    session.use()  # by a page that hasn't ended yet

    assert session.is_over()
    assert not knows(sessions, lost)
    assert knows(sessions, kept)
    assert not knows(Sessions.load(place, RUN, LISTENS), tab)


def test_a_session_that_newer_ones_displaced_is_over(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentos.userland.web.sessions.MAX_SESSIONS", 2)
    entered = [log_in(sessions) for _ in range(3)]

    assert [session.is_over() for session, _, _ in entered] == [True, False, False]
    for known, (_, *keys) in zip([False, True, True], entered, strict=True):
        assert [knows(sessions, key) for key in keys] == [known, known]


def test_damaged_sessions_log_no_browser_in(place: Path) -> None:
    for damaged in (
        '[{"digest": "x"}]',
        "[1]",
        "{",
        '[{"id":' + "[" * 100_000,
        '[{"id":"a","secret":"b","role":"root","until":null,"listens":"127.0.0.1 1","started":1,"used":9e99}]',
    ):
        (place / FILE).write_text(damaged)
        assert Sessions.load(place, RUN, LISTENS).live() == []


def test_a_symlink_for_the_links_isnt_followed(place: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (place / LINKS).rename(elsewhere)
    (place / LINKS).symlink_to(elsewhere)

    with pytest.raises(UnsafeFile, match="symlink"):
        make_link(URL, RUN, tmp_path, "operator")


def test_a_new_link_takes_the_place_of_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "MAX_LINKS", 3)
    made = []
    for age in range(5, 0, -1):
        made.append(key_of(make_link(URL, RUN, tmp_path, "viewer"))["id"])
        then = time.time() - age
        os.utime(tmp_path / DIRECTORY / LINKS / made[-1], (then, then))

    assert {path.name for path in (tmp_path / DIRECTORY / LINKS).iterdir()} == set(made[2:])


def test_a_link_names_no_port_that_the_kernel_doesnt_have(place: Path) -> None:
    """Another user's program may have it by now: it would get the link's key."""
    with publish_url(place, URL, RUN):
        left = (place / "listening").read_text()
        assert find_link(place.parent, "viewer") is not None
    assert find_link(place.parent, "viewer") is None
    (place / "listening").write_text(left)  # by a kernel that was killed
    assert find_link(place.parent, "viewer") is None


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
        with browser_of(kernel).open_page() as tab:
            assert tab.closed is None
        kernel.wait_line("the dashboard's sessions can't be stored")
    finally:
        obstacle.rmdir()


def test_a_log_file_keeps_no_link(kernel: Kernel) -> None:
    line = kernel.wait_line("dashboard: ")
    assert "http://127.0.0.1:" in line
    assert "link=" not in kernel.said
