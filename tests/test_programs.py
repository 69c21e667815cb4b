"""Programs in the kernel's process: what a defect of one ends."""

import logging
from typing import Any

import pytest

from agentos.boot.programs import ProgramHost


async def test_a_program_that_fails_doesnt_end_the_kernel(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(host: ProgramHost) -> None:
        raise ExceptionGroup("several", [ValueError("a defect"), OSError(28, "no space")])

    nothing: Any = None
    host = ProgramHost(nothing, nothing, nothing, nothing, nothing, nothing)
    with caplog.at_level(logging.ERROR):
        await host.run(fail)

    assert "a defect" in caplog.text
