"""``agentos audit NAME`` and ``agentos audit summary``: what one caller did."""

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import trio

from agentos.services.audit.log import open_audit
from tests.cli.approvals.test_audit import audit, entries, printed
from tests.services.audit.audited import DENIED, READ, WRITE, entry

USE = "gpt (in 9, out 20, cost 0.25 USD, question sha256:9a)"
EARLIER = [
    "gpt (in 3, out 4, cost 0.5 EUR, question sha256:9a)",  # [llm] currency was another one
    "gpt (in 1, out 1, cost 0.125, question sha256:9a)",  # written by an older kernel
]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a kernel that has ended; another caller did more than `worker`."""
    state = tmp_path_factory.mktemp("state")
    done = {"phase": "outcome", "outcome": "ok"}

    async def main() -> None:
        async with open_audit(state / "audit", "1.0") as audit:
            audit.note(entry("life 1, pid 7", call="AGENT_READY", **done))
            number = await audit.intend(WRITE)
            audit.note(entry(WRITE.about, intent=number, **done))
            for name in ("a", "b", "a"):
                audit.note(entry(f"/workspace/{name}", call="READ", **done))
            audit.note(entry("/workspace/c", call="READ", phase="outcome", outcome="not_found"))
            audit.note(entry("and 40 more of READ allowed within 1 s", call="READ", **done), 40)
            audit.note(DENIED)
            audit.note(entry("ls -l", call="EXEC", **done))
            audit.note(entry("GET https://example.com/a", call="HTTP", **done))
            for about in (*EARLIER, USE, USE, "local (in 1, out 2, cost null, question sha256:9a)"):
                audit.note(entry(about, call="THINK", **done))
            audit.note(entry("gpt (question sha256:9a)", call="THINK", phase="outcome", outcome="timeout"))
            audit.note(entry("to pong", call="SEND", **done), 12)
            audit.note(entry("exit status 3", call="AGENT_EXITED", phase="outcome", outcome="failed"))
            audit.note(entry("life 12, pid 8", call="AGENT_READY", **done))
            audit.note(entry("watchdog: no call for 1 s", call="AGENT_UNHEALTHY", phase="outcome"))
            for _ in range(9):
                audit.note(entry("x", name="other", agent=8, call="READ", **done))

    trio.run(main)
    return state


def test_a_name_alone_chooses_the_caller(state: Path) -> None:
    assert {each["name"] for each in entries(state, "other")} == {"other"}
    assert len(entries(state, "other", "-n", "3")) == 3
    assert [each["call"] for each in entries(state, "worker", "--decision", "deny")] == ["READ"]
    assert {each["name"] for each in entries(state, "8")} == {"other"}


def test_a_caller_that_is_given_twice_and_a_typo_are_refused_or_named(state: Path) -> None:
    twice = audit(state, "--agent", "other", "worker")
    assert (twice.returncode, "the caller is given twice" in twice.stderr) == (2, True)
    assert audit(state, "verfy").stderr == "agentos: no caller named 'verfy' is in the log, did you mean verify?\n"


def test_entries_end_before_a_time(state: Path) -> None:
    assert entries(state, "--since", "yesterday", "--until", "now") == entries(state)
    assert audit(state, "--until", "yesterday").stdout == ""
    both = audit(state, "-f", "--until", "now")
    assert (both.returncode, "leave out --until or --follow" in both.stderr) == (2, True)
    wrong = audit(state, "--until", "soon")
    assert "Invalid value for --until: expected 10m, 1d, yesterday" in wrong.stderr


def test_a_summary_counts_what_the_caller_did(state: Path) -> None:
    found = json.loads("\n".join(printed(state, "summary", "worker", "--json")))

    assert found["calls"] == {"READ": 45, "SEND": 12, "THINK": 6, "WRITE": 1, "EXEC": 1, "HTTP": 1}
    assert found["failed"] == {"READ not_found": 1, "THINK timeout": 1}
    assert found["tokens"] == {"in": 23, "out": 47}
    assert found["costs"] == {"EUR": 0.5, "unknown currency": 0.125, "USD": 0.5}
    assert found["unpriced"] == 1
    assert found["lives"] == {"starts": 2, "restarts": 1, "unhealthy": 1, "given_up": 0}
    assert (found["read"]["count"], found["read"]["different"]) == (43, 3)
    assert found["read"]["top"][:2] == [{"what": "others", "count": 40}, {"what": "/workspace/a", "count": 2}]
    assert found["written"]["top"] == [{"what": "/workspace/out.txt", "count": 1}]
    assert found["commands"]["top"] == [{"what": "ls -l", "count": 1}]
    assert found["hosts"]["top"] == [{"what": "example.com", "count": 1}]
    assert found["models"]["top"] == [{"what": "gpt", "count": 4}, {"what": "local", "count": 1}]
    assert found["sent"]["top"] == [{"what": "pong", "count": 12}]
    assert found["denied"]["top"] == [{"what": "READ /etc/shadow [default: credentials]", "count": 1}]
    assert found["ended"]["top"] == [{"what": "exit status 3", "count": 1}]


def test_a_summary_for_people_names_only_what_happened(state: Path) -> None:
    first, *lines = printed(state, "summary", "worker")

    assert first.startswith("worker: 21 entries, ")
    assert [" ".join(line.split()) for line in lines[:6]] == [
        "lives 2 starts, 1 restart, unhealthy 1 time",
        "calls READ 45, SEND 12, THINK 6, WRITE 1, EXEC 1, HTTP 1",
        "failed READ not_found 1, THINK timeout 1",
        "tokens 23 in, 47 out",
        "cost 0.5 EUR, 0.125 unknown currency, 0.5 USD, 1 question without a price",
        "ends 1",
    ]
    assert not any(line.startswith("received") for line in lines)
    assert max(map(len, [first, *lines])) <= 100


def test_a_summary_has_its_time(state: Path) -> None:
    until = f"{datetime.now() - timedelta(days=1):%Y-%m-%d %H:%M}"
    done = audit(state, "summary", "worker", "--since", "7d", "--until", until)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("agentos: no entry matches (of ")
    assert READ.about not in done.stdout
