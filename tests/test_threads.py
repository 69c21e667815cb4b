"""Arguments of a function in a worker thread are freed when it ends, without the garbage collector."""

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from agentos.threads import run_in_thread


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
