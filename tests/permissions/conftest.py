"""The queue of approvals that tests ask and decide in."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from trio.testing import MockClock

from .approvals.approval_desk import Desk, opened


@pytest.fixture
async def desk(tmp_path: Path, mock_clock: MockClock) -> AsyncIterator[Desk]:
    async with opened(tmp_path) as made:
        yield made
