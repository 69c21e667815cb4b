"""The steps of a call, run without a task: at once, or begun now and continued by a callback."""

import pytest
from attrs import define, field
from outcome import Error, Value

from agentos.kernel.drivers import Done, Withdraw, at_once, by_callback, suspend
from agentos_sdk.errors import Busy, Cancelled


@define
class Batch:
    """Work that ends when the test says so."""

    full: bool = False
    done: list[Done] = field(factory=list)

    def begin(self, done: Done) -> Withdraw:
        if self.full:
            raise Busy("full")
        self.done.append(done)
        return lambda: True


async def steps(batch: Batch) -> str:
    try:
        return f"stored {await suspend(batch.begin)}"
    except (Busy, Cancelled) as error:
        return error.code


def test_steps_that_are_run_at_once_must_not_wait() -> None:
    with pytest.raises(RuntimeError, match="waits"):
        at_once(steps(Batch()))


@pytest.mark.parametrize(("told", "reply"), [(Value(7), "stored 7"), (Error(Busy("later")), "busy")])
def test_a_result_continues_the_steps(told: Value[int] | Error, reply: str) -> None:
    batch, replies = Batch(), list[str]()

    withdraw = by_callback(steps(batch), replies.append)
    assert callable(withdraw)
    assert replies == []
    batch.done[0](told)

    assert replies == [reply]


def test_work_that_cannot_begin_ends_the_steps() -> None:
    assert by_callback(steps(Batch(full=True)), print) == "busy"


def test_withdrawn_steps_end_as_cancelled() -> None:
    replies = list[str]()
    withdraw = by_callback(steps(Batch()), replies.append)

    assert callable(withdraw)
    withdraw()

    assert replies == ["cancelled"]
