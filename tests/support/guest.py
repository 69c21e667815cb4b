"""The guest kernel of a test process: the fixture ``guest`` boots it once, for all tests that run something in it."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence

import pytest

from tests.tools import cgroup2_vm
from tests.tools.cgroup2_vm import Ended, Guest, Job

ENV = {"AGENTOS_MUST_SANDBOX": "1", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

# Of the host's root: where a user boots the guest, its root may not read it.
KERNELS_OF_ROOT = "/tmp/agentos-0"


def need_guest() -> None:
    """Skip loudly where no guest can be booted; fail where nothing may be skipped."""
    if why := cgroup2_vm.lacking():
        if "AGENTOS_MUST_SANDBOX" in os.environ:
            pytest.fail(why)
        pytest.skip(why)


class RunInGuest:
    """``guest("sh", "-c", "id", user=True)``: run a command there to its end, with our ``PYTHONPATH``.

    Commands share a kernel, but neither files nor processes nor control groups. One that changes a setting of the
    kernel as a whole (a sysctl, say) is run ``alone``, in a kernel that is booted for it.
    """

    def __init__(self, shared: Guest) -> None:
        self._shared = shared

    def __call__(
        self,
        *argv: str,
        user: bool = False,
        delegate: bool = True,
        hide: Sequence[str] = (),
        disk: bool = False,
        sub_ids: bool = False,
        env: Mapping[str, str] | None = None,
        alone: bool = False,
        cwd: str | None = None,
        timeout: float = 300,
    ) -> Ended:
        whole = {**ENV, **(env or {})}
        hidden = [*hide, *([KERNELS_OF_ROOT] if not user and os.path.exists(KERNELS_OF_ROOT) else ())]
        job = Job(
            list(argv),
            user=user,
            delegate=delegate,
            hide=hidden,
            disk=disk,
            sub_ids=sub_ids,
            env=whole,
            cwd=cwd or os.getcwd(),
        )
        return cgroup2_vm.run(job, timeout) if alone else self._shared.run(job, timeout)


@pytest.fixture(scope="session")
def guest() -> Iterator[RunInGuest]:
    """A host without the guest kernel skips loudly; where nothing may be skipped, it fails."""
    need_guest()
    with Guest() as shared:
        yield RunInGuest(shared)
