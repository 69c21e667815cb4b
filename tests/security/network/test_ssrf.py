"""Requests that should lead inside: through two network namespaces, in which all that isn't refused is reached."""

import json
import os
import shutil
import subprocess
import sys
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.security.ssrf_corpus import ASK, BAD, CORPUS, DENIED
from tests.support.runs.rows import each_row

NAMESPACES = ["unshare", "--user", "--map-root-user", "--net"]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    """What came of each URL, and which names were asked for."""
    missing = shutil.which("ip") is None or subprocess.run([*NAMESPACES, "true"], capture_output=True).returncode != 0
    if missing and "AGENTOS_MUST_SANDBOX" not in os.environ:
        pytest.skip("this host has no network namespaces for users, or no `ip`")
    command = [*NAMESPACES, sys.executable, "-m", "tests.security.internet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@each_row("at", range(len(CORPUS)), ids=[f"{number} {url!a}" for number, (url, _) in enumerate(CORPUS)])
def test_a_url_reaches_what_was_judged_or_nothing(outcomes: dict[str, Any], at: int) -> None:
    assert outcomes["found"][at] == CORPUS[at][1]


def test_a_name_that_is_refused_or_asked_about_causes_no_packet(outcomes: dict[str, Any]) -> None:
    looked_up = {urlsplit(url).hostname for url, outcome in CORPUS if outcome not in (BAD, DENIED, ASK)}

    names = {name for name in looked_up if name and not name[-1].isdigit() and ":" not in name}
    assert set(outcomes["asked"]) == {name.encode("idna").decode() for name in names}
    assert not {"denied.test", "ask.test"} & set(outcomes["asked"])
