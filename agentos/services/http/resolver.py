"""Resolver: the addresses of a name, by the host's resolver or a DNS server."""

import socket
from collections.abc import Sequence
from ipaddress import ip_address

import trio

from agentos_sdk.errors import Unavailable

from .addresses import Address

MAX_LOOKUPS = 4  # of one owner at once; one that was abandoned counts until its thread ends
MAX_THREADS = 256  # in which names of all owners are looked up

_threads = trio.Semaphore(MAX_THREADS)


class OwnerLimit:
    """The lookups of one owner, as a limiter of Trio's threads, which also bounds those of all owners together."""

    def __init__(self, total: int) -> None:
        self._free = trio.Semaphore(total)

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        await self._free.acquire()
        try:
            await _threads.acquire()
        except BaseException:
            self._free.release()
            raise

    def release_on_behalf_of(self, borrower: object) -> None:
        _threads.release()
        self._free.release()


async def resolve(host: str, limit: OwnerLimit, server: tuple[str, int] | None) -> Sequence[Address]:
    """The addresses of a name, without duplicates. Raises ``Unavailable``."""
    try:
        found = await trio.to_thread.run_sync(_ask_host, host, abandon_on_cancel=True, limiter=limit)  # type: ignore[arg-type]
    except OSError as error:
        raise Unavailable(f"the name {host} is not resolved: {error.strerror or error}") from None
    return list(dict.fromkeys(found))


def _ask_host(host: str) -> list[Address]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [ip_address(address[0]) for *_, address in found]
