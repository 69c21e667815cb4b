"""The demo of a filtered network: one host is reached by curl and git, no other is, and the log says so."""

import shutil

import pytest

from tests.demos.conftest import Run


def test_the_one_host_is_reached_and_no_other(run: Run) -> None:
    if missing := [name for name in ("curl", "git") if shutil.which(name) is None]:
        pytest.skip(f"the demo runs {' and '.join(missing)}")

    shown = run("filtered_network")

    assert [line for line in shown.splitlines() if len(line) > 100] == []
    assert shown.count("    hello\n") == 2
    assert "    cloned\n" in shown
    assert "CONNECT tunnel failed" in shown
    assert "Could not resolve host: example.com" in shown
    assert "denied" in shown.partition("What is written down")[2]
