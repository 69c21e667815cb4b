"""Resolver: looks up the addresses of a name, by the host's resolver or by one DNS server, a few at once per owner."""

import socket
from collections.abc import Sequence
from ipaddress import ip_address
from weakref import WeakValueDictionary

import trio
from attrs import define, field

from agentos_sdk.errors import Timeout, Unavailable

from .addresses import Address
from .dns_client import ask_server

MAX_LOOKUPS = 4  # of one owner at once; one that was abandoned counts until its thread ends
MAX_LOOKUPS_OF_ALL = 256
LOOKUP_SECONDS = 5.0  # for one name, waiting for a free lookup included
MAX_ADDRESSES = 32  # of one name; further ones are ignored


@define(eq=False)
class Resolver:
    """``server``: a DNS server that is asked instead of the host's resolver."""

    server: tuple[str, int] | None = None
    _all: trio.Semaphore = field(factory=lambda: trio.Semaphore(MAX_LOOKUPS_OF_ALL))
    _limits: "WeakValueDictionary[int, OwnerLimit]" = field(factory=WeakValueDictionary)

    async def resolve(self, owner: int, host: str) -> Sequence[Address]:
        """The addresses of a name, at least one. Raises ``Unavailable``, ``Timeout``."""
        limit = self._limits.get(owner) or OwnerLimit(self._all)
        self._limits[owner] = limit
        try:
            with trio.fail_after(LOOKUP_SECONDS):
                found = await self._look_up(host, limit)
        except trio.TooSlowError:
            raise Timeout(f"the name {host} was not resolved within {LOOKUP_SECONDS:g} s") from None
        except OSError as error:
            raise Unavailable(f"the name {host} was not resolved: {error.strerror or error}") from None
        return list(dict.fromkeys(found))[:MAX_ADDRESSES]

    async def _look_up(self, host: str, limit: "OwnerLimit") -> Sequence[Address]:
        if self.server is not None:
            async with limit:
                return await ask_server(host, self.server)
        # A resolver's call can't be cancelled: its thread is abandoned, and keeps its place in both limits.
        return await trio.to_thread.run_sync(ask_host, host, abandon_on_cancel=True, limiter=limit)  # type: ignore[arg-type]  # it needs two methods


def ask_host(host: str) -> Sequence[Address]:
    """The addresses of a name by ``getaddrinfo``, in the order of RFC 6724. Blocks; raises ``OSError``."""
    found = socket.getaddrinfo(host.encode("ascii"), None, type=socket.SOCK_STREAM)
    return [ip_address(address[0]) for *_, address in found]


class OwnerLimit:
    """Limits the lookups of one owner, and by ``of_all`` those of all owners together; a limiter of Trio's threads."""

    def __init__(self, of_all: trio.Semaphore) -> None:
        self._own, self._all = trio.Semaphore(MAX_LOOKUPS), of_all

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        await self._own.acquire()
        try:
            await self._all.acquire()
        except BaseException:
            self._own.release()
            raise

    def release_on_behalf_of(self, borrower: object) -> None:
        self._all.release()
        self._own.release()

    async def __aenter__(self) -> None:
        await self.acquire_on_behalf_of(self)

    async def __aexit__(self, *error: object) -> None:
        self.release_on_behalf_of(self)
