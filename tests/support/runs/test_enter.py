"""Where pytest was told to put its directory, the one above it is the host's: see ``enter``."""

import stat
from pathlib import Path

import pytest

from .enter import let_in


@pytest.mark.parametrize("below", ["", "popen-gw0"])
def test_a_directory_above_that_of_pytest_keeps_its_mode(entered: Path, below: str) -> None:
    host, base = entered, entered / "base" / below
    place = base / "test0" / "work"
    place.mkdir(parents=True)
    for path in (place, *place.parents[: 4 if below else 3]):
        path.chmod(0o700)
    host.chmod(0o1777)

    let_in(place, base)

    assert {stat.S_IMODE(path.stat().st_mode) for path in (place, place.parent, base, base.parent)} >= {0o755}
    assert (stat.S_IMODE((host / "base").stat().st_mode), stat.S_IMODE(host.stat().st_mode)) == (0o755, 0o1777)


def test_both_directories_that_pytest_makes_by_itself_are_opened(entered: Path) -> None:
    base = entered / "pytest-of-ada" / "pytest-7"
    base.mkdir(parents=True)
    base.parent.chmod(0o700)
    entered.chmod(0o1777)

    let_in(base, base)

    assert (base.parent.stat().st_mode & 0o055, stat.S_IMODE(entered.stat().st_mode)) == (0o055, 0o1777)


def test_it_fails_below_a_closed_directory_of_the_host(entered: Path) -> None:
    base = entered / "home" / "base"
    base.mkdir(parents=True)
    base.parent.chmod(0o700)

    with pytest.raises(pytest.fail.Exception, match="home: other users can't enter it: this test needs another --base"):
        let_in(base, base)

    assert stat.S_IMODE(base.parent.stat().st_mode) == 0o700
