from typing import Any

import pytest

from agentos_sdk.loop.engine.result import MAX_AMOUNT, LoopError, TaskResult
from tests.support.runs.rows import each_row

RECORD: dict[str, Any] = TaskResult("done", "It works.", "t", "a", 3, 20)._asdict()


@each_row("changed", [{}, {"steps": 0, "tokens": 0, "cost": 0}, {"cost": 0.5, "status": "failed", "reason": "broken"}])
def test_a_result_is_read_from_its_record(changed: dict[str, Any]) -> None:
    assert TaskResult.from_record({**RECORD, **changed})._asdict() == {**RECORD, **changed}


@each_row(
    "record",
    [
        [],
        {},
        {**RECORD, "more": 1},
        {**RECORD, "status": "well"},
        *({**RECORD, name: 5} for name in ("summary", "task_id", "agent", "reason")),
        *({**RECORD, name: wrong} for name in ("steps", "tokens") for wrong in (-1, 1.5, True, MAX_AMOUNT)),
        *({**RECORD, "cost": wrong} for wrong in (-1, "1", True, float("nan"))),
    ],
)
def test_what_else_was_stored_as_a_result_is_refused(record: Any) -> None:
    with pytest.raises(LoopError, match="is no result: something else has stored it"):
        TaskResult.from_record(record)
