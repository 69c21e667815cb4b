"""What a sample of a script has written to is copied ahead in jails that wait."""

import logging
import os
import signal
import struct
from collections.abc import Sequence

import pytest
import trio
from msgspec.structs import replace

from agentos.sandbox.policy import Interpreter
from agentos.sandbox.report import probe
from agentos.sandbox.start import sample
from agentos.sandbox.start.sample import MAX_RANGES, MemoryRange, read_written, take_sample
from agentos.sandbox.start.spawner import Spawner
from tests.sandbox.jail import PYTHON, SDK, child_of, kill, line, python, run
from tests.support.wire import PATIENCE

FOREVER = "import time; print('here', flush=True); time.sleep(600)"
PAGE = os.sysconf("SC_PAGE_SIZE")


def pages(ranges: Sequence[MemoryRange]) -> set[int]:
    return {address + offset for address, size in ranges for offset in range(0, size, PAGE)}


def test_pages_of_its_own_that_adjoin_are_one_range() -> None:
    own, shared, swapped = sample._PRESENT | sample._EXCLUSIVE, sample._PRESENT, sample._EXCLUSIVE
    entries = struct.pack("=9Q", shared, own, own, own, swapped, own, 0, own, own)

    found = list(sample._join(100 * PAGE, entries))

    assert found == [(101 * PAGE, 3 * PAGE), (105 * PAGE, PAGE), (107 * PAGE, 2 * PAGE)]


async def test_a_waiting_program_has_copied_what_a_script_writes_to(spawner: Spawner) -> None:
    written = await sample._run(spawner, sample._plan(probe.read_host(), SDK))
    assert 300 < len(pages(written)) < 2000
    assert len(written) < MAX_RANGES

    spawner.zygote.set_sample(written)
    await spawner.builder.build(python(FOREVER))

    init = spawner.builder._waiting.jails[-1].process.pid
    with trio.fail_after(PATIENCE):
        while not (program := child_of(init)):
            await trio.sleep(0.01)
        # Not those that were mapped later, nor those that another process has left to this one.
        while len(pages(written) - pages(read_written(program))) > len(pages(written)) // 10:
            await trio.sleep(0.01)
    sandbox = await spawner.spawn(python(FOREVER))
    assert sandbox.program == program
    assert await line(sandbox) == "here\n"
    await kill(sandbox)


async def test_another_zygote_needs_a_sample_of_its_own(spawner: Spawner) -> None:
    await take_sample(spawner, probe.read_host(), SDK)
    assert spawner.zygote.has_sample

    os.kill(spawner.zygote.pid, signal.SIGKILL)

    assert (await run(spawner, python("print('here')"))).out == "here\n"
    assert not spawner.zygote.has_sample


OF_A_SANDBOX = Interpreter("/workspace/v/bin/python", "/workspace/v", "/usr")


@pytest.mark.parametrize(
    ("interpreter", "sdk", "why"),
    [
        (PYTHON, "/absent", "/absent: No such file or directory"),
        (OF_A_SANDBOX, SDK, "prefix is /workspace/v, which a sandbox uses for its own files"),
    ],
    ids=["no SDK", "an unfit interpreter"],
)
async def test_without_a_sample_jails_wait_all_the_same(
    spawner: Spawner, caplog: pytest.LogCaptureFixture, interpreter: Interpreter, sdk: str, why: str
) -> None:
    with caplog.at_level(logging.INFO):
        await take_sample(spawner, replace(probe.read_host(), interpreter=interpreter), sdk)

    assert "waiting jails copy no memory ahead: " in caplog.text
    assert why in caplog.text
    assert spawner.zygote.has_sample
    await spawner.builder.build(python(FOREVER))
    assert (await run(spawner, python("print('here')"))).out == "here\n"
