"""``agentos state``: what it prints, and what it sends."""

import json

from tests.cli.conftest import Agentos
from tests.support.kernel import Kernel
from tests.support.wire import STORE


def test_a_key_is_set_read_listed_and_removed(agentos: Agentos) -> None:
    now = json.loads(agentos("state", "set", "--json", "plan.a", "0").stdout)["version"]
    assert agentos("state", "set", "plan.a", '{"step": 1}').stdout == f"plan.a has the version {now + 1}\n"
    assert (
        agentos("state", "set", "plan.b", "plain text", "--ttl", "1h").stdout == f"plan.b has the version {now + 2}\n"
    )
    assert agentos("state", "set", "other", "null").stdout == f"other has the version {now + 3}\n"

    assert agentos("state", "get", "plan.a").stdout == '{"step": 1}\n'
    assert agentos("state", "get", "plan.b").stdout == '"plain text"\n'
    assert 3500 < json.loads(agentos("state", "get", "--json", "plan.b").stdout)["expires_in"] <= 3600
    assert agentos("state", "ls", "plan.").stdout == "plan.a\nplan.b\n"
    assert json.loads(agentos("state", "ls", "--json").stdout) == ["other", "plan.a", "plan.b"]
    for key in ("plan.a", "plan.b", "other"):
        assert agentos("state", "rm", key).stdout == f"{key} is deleted\n"
    assert agentos("state", "ls").stdout == ""


def test_a_version_that_has_changed_is_said(agentos: Agentos) -> None:
    version = json.loads(agentos("state", "set", "--json", "x", "1").stdout)["version"]

    refused = agentos("state", "set", "--json", "x", "2", "--if-version", "0")
    assert (json.loads(refused.stdout)["version"], refused.returncode) == (version, 1)
    assert agentos("state", "set", "x", "2", "--ttl", "soon").returncode == 2
    agentos("state", "rm", "x")


def test_what_an_agent_stored_moves_no_cursor(agentos: Agentos) -> None:
    agentos("call", "STORE", json.dumps({"key": "\u2028", "value": "\u009b2J\u202e"}))

    assert agentos("state", "get", "\u2028").stdout == '"\\x9b2J\\u202e"\n'
    assert agentos("state", "ls").stdout == "\\u2028\n"
    agentos("state", "rm", "\u2028")


def test_an_agents_own_keys_are_read_with_its_name(agentos: Agentos, kernel: Kernel) -> None:
    number = kernel.spawn("holder")
    with kernel.connect_as(number) as wire:
        assert wire.call(STORE, {"key": "own.plan", "value": [1], "scope": "agent"})["success"]

    assert agentos("state", "get", "own.plan", "--agent", "holder").stdout == "[1]\n"
    assert agentos("state", "ls", "--agent", "holder").stdout == "own.plan\n"
    assert agentos("state", "ls", "own").stdout == ""
    missing = agentos("state", "get", "own.plan", "--agent", "another")
    assert (missing.returncode, missing.stderr) == (1, "agentos: there is no key 'own.plan'\n")
    wrong = agentos("state", "ls", "--agent", "holde")
    assert (wrong.returncode, wrong.stderr) == (1, "agentos: no agent is called 'holde', did you mean holder?\n")
    assert (agentos("state", "ls", "other", "--agent", "holder").returncode) == 0
    agentos("kill", "holder")
