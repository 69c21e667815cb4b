"""Functions in worker threads: arguments that are freed, cancellation, limits."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import trio

from agentos.threads import Limiter, check_cancelled, run_in_thread
from tests.support.wire import PATIENCE


class Body:
    """Stands for a large argument."""


def succeed(_: Body) -> int:
    return 1


def fail(_: Body) -> int:
    raise ValueError("wrong")


def fail_because_of_another(body: Body) -> int:
    try:
        return fail(body)
    except ValueError:
        raise KeyError("wrong too") from None


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def call(function: Callable[[Body], int]) -> weakref.ref[Body]:
    body = Body()
    reference = weakref.ref(body)
    try:
        assert await run_in_thread(function, body) == 1
    except (ValueError, KeyError) as error:
        assert "wrong" in str(error)
    return reference


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("function", [succeed, fail, fail_because_of_another])
async def test_arguments_are_freed(function: Callable[[Body], int]) -> None:
    reference = await call(function)

    assert reference() is None


async def test_an_exception_keeps_its_traceback() -> None:
    with pytest.raises(ValueError, match="wrong") as caught:
        await run_in_thread(fail, Body())

    assert [entry.name for entry in caught.traceback][-1] == "fail"


async def test_a_cancelled_task_waits_for_its_thread_and_the_function_can_look() -> None:
    token, ended = trio.lowlevel.current_trio_token(), False

    def look(scope: trio.CancelScope) -> None:
        nonlocal ended
        check_cancelled()
        trio.from_thread.run_sync(scope.cancel, trio_token=token)
        trio.from_thread.run_sync(str, trio_token=token)
        ended = True
        check_cancelled()

    with trio.CancelScope() as scope:
        await run_in_thread(look, scope)

    assert scope.cancelled_caught
    assert ended
    check_cancelled()


async def test_as_many_run_at_once_as_the_limiter_admits_and_a_cancelled_one_gives_its_place_up() -> None:
    limiter, inside, go = Limiter(1), threading.Semaphore(0), threading.Event()

    def wait() -> None:
        inside.release()
        assert go.wait(PATIENCE)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(run_in_thread, wait, limiter=limiter))
        await run_in_thread(inside.acquire)
        with trio.move_on_after(0.05) as waited:
            await run_in_thread(wait, limiter=limiter)
        assert waited.cancelled_caught
        go.set()
    await run_in_thread(wait, limiter=limiter)


async def test_without_a_thread_the_limiter_is_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise RuntimeError("can't start new thread")

    limiter = Limiter(1)
    with monkeypatch.context() as patched:
        patched.setattr(trio.lowlevel, "start_thread_soon", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            await run_in_thread(str, limiter=limiter)

    assert await run_in_thread(str, limiter=limiter) == ""
