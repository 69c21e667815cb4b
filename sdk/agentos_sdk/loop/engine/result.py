"""How a task has ended."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeGuard, get_args

MAX_AMOUNT = 1 << 63  # no count and no cost is as large: larger ones can't be shown
Status = Literal["done", "failed", "budget", "stopped"]


class TaskResult(NamedTuple):
    """``status`` is done, failed, budget: a line of the budget was used up before the task was done, or stopped.

    Stopped: the operator has stopped it, and it can be resumed.

    ``summary`` is what the model says that it did; ``reason`` is why the task isn't done, otherwise empty. ``agent`` is
    the name of the agent that worked on it. ``tokens`` and ``cost`` are those of all questions to the model; ``cost``
    is in the kernel's currency, None if the model has no price. ``steps`` are answers of the model.
    """

    status: Status
    summary: str
    task_id: str
    agent: str
    steps: int
    tokens: int
    cost: float | None = None
    reason: str = ""

    @property
    def success(self) -> bool:
        return self.status == "done"

    @classmethod
    def from_record(cls, record: Any) -> TaskResult:
        """The result in a task's last record, which whatever runs in the agent's jail could have written.

        Raises :class:`LoopError` if it is no result.
        """
        if not isinstance(record, dict) or set(record) != set(cls._fields):
            raise LoopError("the record of the task's end is no result: something else has stored it")
        texts = all(isinstance(record[name], str) for name in ("summary", "task_id", "agent", "reason"))
        counts = all(type(record[name]) is int and is_amount(record[name]) for name in ("steps", "tokens"))
        cost = record["cost"] is None or is_amount(record["cost"])
        if record["status"] not in get_args(Status) or not (texts and counts and cost):
            raise LoopError("the record of the task's end is no result: something else has stored it")
        return cls(**record)


def is_amount(value: Any) -> TypeGuard[float]:
    """Whether a value from a record or an event is a count or a cost that can be shown and added to others."""
    return type(value) in (int, float) and 0 <= value < MAX_AMOUNT


class LoopError(Exception):
    """The loop can't go on: the text says why, and what to do."""


def other_task(task_id: str, text: str) -> LoopError:
    """The error for a task that is given the id of another one."""
    return LoopError(f"task_id: {task_id!r} is another task ({text[:100]!r}): give another id, or resume that task")
