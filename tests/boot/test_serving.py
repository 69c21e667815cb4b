from pathlib import Path

import trio
from trio.testing import MockClock

from agentos.boot.serving import COUNT_SECONDS, write_counts
from agentos.services.audit.log import open_audit
from agentos.services.audit.query import Query
from agentos.services.audit.traffic import Party, Traffic
from tests.services.audit.audited import found


async def test_what_is_only_counted_is_in_the_audit_log_after_an_hour_and_at_the_end(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_audit(tmp_path, "1.0") as audit, trio.open_nursery() as nursery:
        traffic = Traffic(audit)
        nursery.start_soon(write_counts, traffic)
        for number in (1, 2, 3):
            traffic.count(7, Party("agent", "ping", "SEND"), f"peer {number}")
            if number < 3:
                await trio.sleep(COUNT_SECONDS)
                assert not traffic._counts, "written, and counted anew"
        nursery.cancel_scope.cancel()

    rows = found(tmp_path, Query(calls=["SEND"]))
    assert [(row.about, row.repeated) for row in rows] == [("to peer 1", 1), ("to peer 2", 1), ("to peer 3", 1)]
