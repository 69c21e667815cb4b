"""How the test files are handed out to the workers of ``pytest -n``: whole files, slow ones first."""

import pytest
from xdist.scheduler import LoadFileScheduling

# Their session fixtures attack each setting, in guests too: in two workers that would be done twice.
ATTACKS = frozenset(
    f"tests/security/test_{name}.py"
    for name in ("channels", "exhaustion", "files", "privileges", "processes", "surface", "totals")
)


class WholeFiles(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """The tests of one file go to one worker; the files of ``ATTACKS`` count as one."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "ATTACKS" if file in ATTACKS else file


def sort_slow_first(items: list[pytest.Item]) -> None:
    """Files with a test marked ``slow`` come first, so that the workers end at about the same time."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def check_attacks(items: list[pytest.Item]) -> None:
    """Fail for a file that shares the verdicts and isn't in ``ATTACKS``."""
    shared = {"attacked", "guests"}
    files = {item.nodeid.partition("::")[0] for item in items if shared & set(getattr(item, "fixturenames", ()))}
    if missing := files - ATTACKS:
        raise pytest.UsageError(f"tests.support.workers.ATTACKS lacks {sorted(missing)}")
