"""Each setting is attacked once; each test asks for one of the verdicts. All guests run at once, each on one CPU."""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from attrs import frozen

from agentos_attacks.verdicts import Verdict
from agentos_sdk import AgentOSClient
from tests.security import settings
from tests.support.guest import need_guest
from tests.support.kernel import Kernel, killing_new_agents

GUESTS = {"guest-root": settings.Guest(), "guest-user": settings.Guest(user=True), "bare": settings.Guest(bare=True)}
SETTINGS = ("here", "guest-root", "guest-user")  # here: whoever runs the tests, with the groups that this host has


@pytest.fixture(scope="session")
def any_user() -> None:
    """For an attack that meets the same code whichever user the kernel has: it isn't repeated as an ordinary user."""


@frozen
class Attacked:
    """What came of the attacks in one setting."""

    setting: str
    verdicts: Mapping[str, Verdict]

    def stopped(self, check: str) -> None:
        """Blocked, or not promised in this setting: how many aren't is counted in ``test_totals``."""
        verdict = self.verdicts[check]
        assert verdict.outcome in ("blocked", "accepted"), verdict.detail

    def stopped_in_strict(self, check: str) -> None:
        """Blocked, unless this setting has no isolation ``strict`` to attack."""
        verdict = self.verdicts[check]
        if verdict.outcome == "n/a":
            pytest.skip(verdict.detail)
        assert verdict.outcome == "blocked", verdict.detail


@pytest.fixture(scope="session", params=SETTINGS)
def attacked(request: pytest.FixtureRequest) -> Attacked:
    """The attacks of one setting; a host that can't have it skips loudly, unless it must."""
    setting: str = request.param
    found = settings.here() if setting == "here" else request.getfixturevalue("guests")[setting].result()
    if all(verdict.outcome in ("unclear", "n/a") for verdict in found):
        skip(found[0].detail)
    return Attacked(setting, {verdict.check: verdict for verdict in found})


@pytest.fixture(scope="session")
def guests() -> Iterator[Mapping[str, "Future[list[Verdict]]"]]:
    """What the attacks in each guest will have come to; a host that can't boot one skips loudly, unless it must."""
    need_guest()
    cpus = iter(sorted(os.sched_getaffinity(0)))
    count = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(count, initializer=lambda: os.sched_setaffinity(0, {next(cpus)})) as pool:
        yield {name: pool.submit(guest.attacked) for name, guest in GUESTS.items()}


@pytest.fixture
def client(kernel: Kernel) -> Iterator[AgentOSClient]:
    """An operator of a kernel that has walls for its agents; those that the test leaves are killed."""
    verdict = kernel.wait_line(r"\| isolation ")
    if "isolation standard" not in verdict:
        skip(verdict)
    with killing_new_agents(kernel), kernel.client() as connected:
        yield connected


def skip(why: str) -> None:
    """Unless this host must do it."""
    if "AGENTOS_MUST_SANDBOX" in os.environ:
        pytest.fail(why)
    pytest.skip(why)
