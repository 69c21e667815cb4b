"""What has ended is freed at once: it doesn't wait for the garbage collector."""

import gc
import weakref
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from supervisors import ChildSpec, Supervisor, SupervisorSpec, Task


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
async def test_a_supervisor_and_its_children_are_freed_when_it_has_ended() -> None:
    supervisor = Supervisor(
        SupervisorSpec(
            [ChildSpec("a", Task(trio.sleep, 0), restart="temporary", significant=True)],
            auto_shutdown="any_significant",
        )
    )
    (staff, inbox) = (weakref.ref(supervisor._staff), weakref.ref(supervisor._inbox))
    ended = weakref.ref(supervisor)

    await supervisor.run()
    del supervisor
    await trio.testing.wait_all_tasks_blocked()

    assert (ended(), staff(), inbox()) == (None, None, None)


@pytest.mark.usefixtures("uncollected")
async def test_a_life_is_freed_when_its_child_has_ended(nursery: trio.Nursery) -> None:
    supervisor = await nursery.start(Supervisor(SupervisorSpec([])).run)
    job = Task(trio.sleep, 0)
    gone = weakref.ref(job)

    await supervisor.start_child(ChildSpec("a", job, restart="temporary"))
    del job
    await trio.testing.wait_all_tasks_blocked()

    assert gone() is None
    supervisor.stop()
