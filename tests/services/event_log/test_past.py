"""Events that have left the ring: on disk they are all there, as long as there is room for them."""

import json
import math
from pathlib import Path

import pytest

from agentos.services.event_log import past
from agentos.services.event_log.file import FILE_EVENTS, EventFiles
from agentos.services.event_log.past import DIRECTORY, Stored, append_past, read_stored
from agentos.services.event_log.ring import MAX_RECORDS, EventLog
from agentos.services.events import AgentReady


def write(files: EventFiles, log: EventLog, batches: int, name: str = "w") -> None:
    """Publish and append batches of events, each before it can leave the ring."""
    for _ in range(batches):
        place = log.next
        for number in range(FILE_EVENTS):
            log.take_event(AgentReady(3, name, number))
        files.append(log.boots[-1], log.list_from(place, FILE_EVENTS), kept=log.list_from(0, 2 * MAX_RECORDS))


def read(place: Path, since: float = 0.0, until: float = math.inf) -> list[Stored]:
    return read_stored(place, since, until)


def test_no_event_is_lost_that_has_left_the_ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "FILE_BYTES", 1 << 20)
    files, log = EventFiles(tmp_path), EventLog(boot="b0")
    write(files, log, 20)

    found = read(tmp_path)

    assert [event.seq for event in found] == list(range(1, 20 * FILE_EVENTS + 1))
    assert len(list((tmp_path / DIRECTORY).iterdir())) > 3
    first = json.loads(found[0].text)
    assert (first["type"], first["boot"], first["data"]["name"]) == ("AGENT_READY", "b0", "w")
    assert (found[0].names, found[0].type) == (("w",), "AGENT_READY")
    assert len(EventFiles(tmp_path).load()[1]) < 20 * FILE_EVENTS  # the next kernel reads no more than before


def test_a_time_selects_events(tmp_path: Path) -> None:
    files, log = EventFiles(tmp_path), EventLog(boot="b0")
    write(files, log, 8)
    at = [event.at for event in read(tmp_path)]

    assert [event.at for event in read(tmp_path, at[5000], at[9000])] == [
        one for one in at if at[5000] <= one < at[9000]
    ]


def test_beyond_their_bound_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "FILE_BYTES", 10_000)
    monkeypatch.setattr(past, "MAX_BYTES", 50_000)
    line = b'{"seq":%d,"at":1.0,"type":"CUSTOM","text":"","data":"' + b"x" * 900 + b'","agent_ids":[]}\n'

    for number in range(200):
        append_past(tmp_path, [line % (number + 1)])

    found = [event.seq for event in read(tmp_path)]
    assert found == list(range(found[0], 201))
    assert 40 < len(found) < 75
    assert sum(path.stat().st_size for path in (tmp_path / DIRECTORY).iterdir()) < 70_000


def test_what_was_cut_off_or_is_no_event_is_skipped_and_what_is_there_twice_counts_once(tmp_path: Path) -> None:
    files, log = EventFiles(tmp_path), EventLog(boot="b0")
    write(files, log, 1)
    lines = (tmp_path / "1.jsonl").read_bytes().splitlines(keepends=True)

    append_past(tmp_path, [*lines[:5], b"\xff\n", b"[]\n", b'{"seq":77777,"at":1.0}\n', lines[7][:-20]])

    assert [event.seq for event in read(tmp_path)] == list(range(1, FILE_EVENTS + 1))


def test_past_events_may_go_before_those_of_the_ring(tmp_path: Path) -> None:
    files, log = EventFiles(tmp_path), EventLog(boot="b0")
    write(files, log, 8)

    assert files.drop_former(1) > 0
    assert list((tmp_path / DIRECTORY).iterdir()) == []
    assert files.drop_former(1) == 0
    assert len(read(tmp_path)) >= MAX_RECORDS
