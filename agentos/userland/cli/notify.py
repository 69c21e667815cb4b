"""What a service manager is told of the kernel: sd_notify(3), datagrams to the socket that the environment names."""

import logging
import os
import socket
from collections.abc import MutableMapping

import trio
from attrs import frozen

log = logging.getLogger(__name__)

TRY_AGAIN = 0.5  # seconds; a manager that never hears READY=1 ends us when it has waited long enough


@frozen
class Manager:
    """Who started us and wants to be told. Nothing that goes wrong in telling it harms the kernel.

    ``address`` is a path, or begins with NUL in Linux's abstract namespace; None: there is nobody to tell.
    ``watchdog`` is after how many seconds of silence we are taken for dead; None: never.
    """

    address: str | None = None
    watchdog: float | None = None

    @classmethod
    def take(cls, environment: MutableMapping[str, str]) -> "Manager":
        """The one that an environment names, which it doesn't name any more then: this is for nobody that we start."""
        address = environment.pop("NOTIFY_SOCKET", "")
        microseconds = environment.pop("WATCHDOG_USEC", "")
        meant = environment.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        return cls(
            address=address.replace("@", "\0", 1) if address.startswith("@") else address or None,
            watchdog=int(microseconds) / 1e6 if meant and microseconds.isdecimal() and int(microseconds) else None,
        )

    def tell(self, *news: str) -> bool:
        """Send ``NAME=value`` lines, without waiting; whether they were taken."""
        if self.address is None:
            return True
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as channel:
                channel.sendto("\n".join(line.replace("\n", " ") for line in news).encode(), self.address)
        except OSError as error:
            log.debug("the service manager wasn't told %s: %s", news[0], error)
            return False
        return True

    async def accompany(self, status: str) -> None:
        """Say that the kernel is up, and then, from its own event loop, that it lives, for as long as it does."""
        while not self.tell("READY=1", f"STATUS={status}"):  # noqa: ASYNC110 - nobody says when it has room
            await trio.sleep(TRY_AGAIN)
        while self.watchdog is not None:
            await trio.sleep(self.watchdog / 2)
            self.tell("WATCHDOG=1")
