"""Addresses that stand for host names inside one jail, for programs that connect without a proxy."""

from collections import OrderedDict
from ipaddress import IPv4Address

from attrs import define, field

from agentos.agents.jail.filtered_network import ADDRESSES

MAX_NAMES = 16_384  # names that have an address at the same time


@define(eq=False)
class NameTable:
    """Gives each name an address of :data:`ADDRESSES`, which it keeps while it is in the table.

    Beyond :data:`MAX_NAMES` the name used least recently loses its address. That address is given again only after all
    others: a program that still has it connects to no host, not to another one.
    """

    _addresses: OrderedDict[str, IPv4Address] = field(factory=OrderedDict)  # the one used least recently first
    _names: dict[IPv4Address, str] = field(factory=dict)
    _given: int = 0  # addresses, so far

    def address_of(self, name: str) -> IPv4Address:
        """The address of a name; a new one if it has none."""
        if name not in self._addresses:
            if len(self._addresses) >= MAX_NAMES:
                _, forgotten = self._addresses.popitem(last=False)
                del self._names[forgotten]
            self._addresses[name] = address = self._next_address()
            self._names[address] = name
        self._addresses.move_to_end(name)
        return self._addresses[name]

    def name_of(self, address: IPv4Address) -> str | None:
        """The name that has this address, if any."""
        name = self._names.get(address)
        if name is not None:
            self._addresses.move_to_end(name)
        return name

    def _next_address(self) -> IPv4Address:
        while True:
            offset = 1 + self._given % (ADDRESSES.num_addresses - 2)  # neither the first address nor the last
            self._given += 1
            if ADDRESSES[offset] not in self._names:  # else a name that has been in use all the time
                return ADDRESSES[offset]
