"""Messages are counted per caller and peer, and the counts are written."""

from pathlib import Path

import pytest

from agentos.services.audit import traffic as service
from agentos.services.audit.log import open_audit
from agentos.services.audit.query import Query
from agentos.services.audit.traffic import END_SECONDS, MAX_PEERS, OTHERS, Party, Traffic
from agentos.services.events import AgentExited

from .audited import found

PING, PONG = Party("agent", "ping", "SEND"), Party("agent", "pong", "RECV")


async def test_each_peer_has_its_count(tmp_path: Path) -> None:
    async with open_audit(tmp_path / "audit", "1.0") as audit:
        traffic = Traffic(audit)
        for _ in range(1000):
            traffic.count(7, PING, "pong")
        traffic.count(7, PING, "other")
        traffic.count(8, PONG, "ping")
        traffic.flush()
        traffic.flush()

    rows = found(tmp_path / "audit", Query(calls=["SEND", "RECV"]))
    assert [(row.agent, row.name, row.call, row.about, row.repeated, row.outcome) for row in rows] == [
        (7, "ping", "SEND", "to pong", 1000, "ok"),
        (7, "ping", "SEND", "to other", 1, "ok"),
        (8, "pong", "RECV", "from ping", 1, "ok"),
    ]


async def test_what_an_agent_sent_and_got_is_written_when_its_life_ends(tmp_path: Path) -> None:
    now = 0.0
    async with open_audit(tmp_path / "audit", "1.0") as audit:
        traffic = Traffic(audit, lambda: now)
        for agent, party in ((7, PING), (7, PING._replace(call="RECV")), (8, PONG), (9, PONG._replace(name="last"))):
            traffic.count(agent, party, "x")
        traffic.end_life(AgentExited(7, "ping", "exit status 0"))
        traffic.end_life(AgentExited(8, "pong", "exit status 0"))  # so soon that it waits for the hour
        now = END_SECONDS
        traffic.end_life(AgentExited(9, "last", "exit status 0"))

    rows = found(tmp_path / "audit", Query(calls=["SEND", "RECV"]))
    assert [(row.agent, row.call, row.about) for row in rows] == [
        (7, "SEND", "to x"), (7, "RECV", "from x"), (9, "RECV", "from x"),
    ]  # fmt: skip


async def test_peers_beyond_the_first_are_counted_together(tmp_path: Path) -> None:
    async with open_audit(tmp_path / "audit", "1.0") as audit:
        traffic = Traffic(audit)
        for number in range(10_000):
            traffic.count(7, PING, f"p{number}")
        traffic.flush()

    rows = found(tmp_path / "audit", Query(calls=["SEND"]))
    assert len(rows) == MAX_PEERS + 1
    assert (rows[-1].about, rows[-1].repeated) == (f"to {OTHERS}", 10_000 - MAX_PEERS)


async def test_callers_are_bounded_by_writing_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_CALLERS", 10)

    async with open_audit(tmp_path / "audit", "1.0") as audit:
        traffic = Traffic(audit)
        for number in range(25):
            traffic.count(number, Party("agent", f"a{number}", "SEND"), "hub")
        assert len(traffic._counts) == 5
        traffic.flush()

    assert len(found(tmp_path / "audit", Query(calls=["SEND"]))) == 25
