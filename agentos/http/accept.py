"""Accepts TCP connections on a listening socket of the kernel."""

import errno
import logging

import trio

from agentos.kernel.wire.listener import ACCEPT_PAUSE_SECONDS

log = logging.getLogger(__name__)


async def accept(listener: trio.SocketListener) -> trio.SocketStream | None:
    """Accept a connection; ``None`` if it is gone again, or after a pause if no file descriptor is left."""
    try:
        return await listener.accept()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
            log.warning("no connection can be accepted for %s s: %s", ACCEPT_PAUSE_SECONDS, error)
            await trio.sleep(ACCEPT_PAUSE_SECONDS)
        return None
