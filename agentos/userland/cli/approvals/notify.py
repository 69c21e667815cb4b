"""Notifies the service manager with sd_notify(3): datagrams to the socket in NOTIFY_SOCKET."""

import logging
import os
import socket
from collections.abc import MutableMapping

import trio
from attrs import frozen

log = logging.getLogger(__name__)

RETRY_INTERVAL = 0.5  # seconds; a manager that never gets READY=1 kills us at its start timeout


@frozen
class ServiceManager:
    """The service manager that started this kernel. Failed notifications don't affect the kernel.

    ``address`` is a path, or begins with NUL for Linux's abstract namespace; None: no manager. ``watchdog`` is the
    number of seconds without a notification after which the manager considers us dead; None: never.
    """

    address: str | None = None
    watchdog: float | None = None

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> "ServiceManager":
        """Read the manager from an environment, and remove its variables so that child processes don't inherit them."""
        address = environment.pop("NOTIFY_SOCKET", "")
        microseconds = environment.pop("WATCHDOG_USEC", "")
        is_for_us = environment.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        return cls(
            address=address.replace("@", "\0", 1) if address.startswith("@") else address or None,
            watchdog=int(microseconds) / 1e6 if is_for_us and microseconds.isdecimal() and int(microseconds) else None,
        )

    def notify(self, *lines: str) -> bool:
        """Send ``NAME=value`` lines, without blocking; returns whether they were sent."""
        if self.address is None:
            return True
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as channel:
                channel.sendto("\n".join(line.replace("\n", " ") for line in lines).encode(), self.address)
        except OSError as error:
            log.debug("the service manager wasn't told %s: %s", lines[0], error)
            return False
        return True

    async def keep_notified(self, status: str) -> None:
        """Report READY, then send watchdog pings from the kernel's event loop until it ends."""
        while not self.notify("READY=1", f"STATUS={status}"):  # noqa: ASYNC110 - no event tells when it has room
            await trio.sleep(RETRY_INTERVAL)
        while self.watchdog is not None:
            await trio.sleep(self.watchdog / 2)
            self.notify("WATCHDOG=1")
