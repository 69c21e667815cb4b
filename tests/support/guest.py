"""Whether tests can have a guest kernel on this host."""

import os

import pytest

from tests.tools import cgroup2_vm


def need_guest() -> None:
    """Skip loudly where no guest can be booted; fail where nothing may be skipped, unless the CPU is the cause."""
    if why := cgroup2_vm.lacking():
        if "AGENTOS_MUST_SANDBOX" in os.environ and not cgroup2_vm.is_excused():
            pytest.fail(why)
        pytest.skip(why)
