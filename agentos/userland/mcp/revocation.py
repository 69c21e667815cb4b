"""Notices in running servers that the operator has revoked a client."""

import logging
from pathlib import Path

import trio

from agentos.threads import run_in_thread

from .clients import ClientEntry, is_current

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0  # between two looks at the entry


async def wait_revoked(state_dir: Path, entry: ClientEntry) -> None:
    """Return when the entry is gone or has changed, within about :data:`CHECK_SECONDS`."""
    try:
        while True:
            if not await run_in_thread(is_current, state_dir, entry):
                log.warning("the operator has revoked %s", entry.guest)
                return
            await trio.sleep(CHECK_SECONDS)
    except OSError as error:  # whether it still is there can't be known
        log.error("the entry of %s can't be read, so its session ends: %s", entry.guest, error)
