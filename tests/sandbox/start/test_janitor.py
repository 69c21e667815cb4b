"""What the janitor removes, and what it must not touch."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.sandbox.inside import janitor
from agentos.sandbox.inside.janitor import Cleanup
from tests.support.wire import PATIENCE


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Path]:
    """A directory that links lead to, and that must be whole afterwards."""
    place = tmp_path / "kept"
    (place / "below").mkdir(parents=True)
    (place / "below" / "file").write_text("here")
    yield place
    assert (place / "below" / "file").read_text() == "here"


def test_a_directory_goes_with_all_in_it_and_links_are_not_followed(tmp_path: Path, kept: Path) -> None:
    top = tmp_path / "top"
    (top / "deep" / "deeper").mkdir(parents=True)
    (top / "deep" / "file").touch()
    (top / "to-directory").symlink_to(kept)
    (top / "deep" / "to-file").symlink_to(kept / "below" / "file")
    (top / "dangling").symlink_to("/no/such")
    os.mkfifo(top / "fifo")

    janitor.kill_and_remove(Cleanup(directories=(str(top),)))

    assert not top.exists()


def test_a_directory_that_has_become_a_link_stays(tmp_path: Path, kept: Path) -> None:
    (tmp_path / "link").symlink_to(kept)

    janitor.kill_and_remove(Cleanup(directories=(str(tmp_path / "link"),)))

    assert (tmp_path / "link").is_symlink()


def test_only_processes_with_the_mark_are_killed() -> None:
    environments = ({"RUN": "this"}, {"RUN": "that"}, {"XRUN": "this"}, {"RUN": "this-not"})
    programs = [subprocess.Popen(["sleep", "1000"], env=environment) for environment in environments]
    try:
        janitor.kill_and_remove(Cleanup(mark="RUN=this"))

        assert programs[0].wait(PATIENCE) == -9
        assert [program.poll() for program in programs[1:]] == [None, None, None]
    finally:
        for program in programs:
            program.kill()
            program.wait()


def test_what_is_not_there_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(janitor, "CLEANUP_TIMEOUT", 10 * PATIENCE)
    began = time.monotonic()

    janitor.kill_and_remove(Cleanup())
    janitor.kill_and_remove(
        Cleanup(groups=(str(tmp_path / "no-group"),), directories=(str(tmp_path / "none"),), mark="NO=body")
    )

    assert time.monotonic() - began < PATIENCE


def test_a_living_parent_has_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(janitor, "CLEANUP_TIMEOUT", 0.05)

    assert not janitor.wait_for_parent_exit(os.getppid())
    assert janitor.wait_for_parent_exit(os.getpid())
