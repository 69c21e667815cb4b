"""Each name has an address of its own, which never becomes another name's while a program may still use it."""

from ipaddress import IPv4Address

from hypothesis import given
from hypothesis import strategies as st

from agentos.agents.jail.filtered_network import ADDRESSES
from agentos.gateways.http_proxy.name_table import MAX_NAMES, NameTable


def test_a_name_keeps_its_address_and_the_address_its_name() -> None:
    table = NameTable()
    first, second = table.address_of("a.example"), table.address_of("b.example")

    assert first != second
    assert table.address_of("a.example") == first
    assert (table.name_of(first), table.name_of(second)) == ("a.example", "b.example")
    assert table.name_of(IPv4Address("198.18.200.1")) is None


def test_ten_thousand_hosts_keep_their_addresses() -> None:
    table = NameTable()
    names = [f"host{number}.example" for number in range(10_000)]

    given = [table.address_of(name) for name in names]

    assert len(set(given)) == len(names)
    assert [table.address_of(name) for name in names] == given
    assert [table.name_of(address) for address in given] == names
    assert all(address in ADDRESSES for address in given)


def test_an_address_of_a_forgotten_name_stands_for_no_host() -> None:
    table = NameTable()
    old, kept = table.address_of("old.example"), table.address_of("kept.example")

    for number in range(MAX_NAMES):
        table.address_of("kept.example")
        table.address_of(f"{number}.example")

    assert table.name_of(old) is None
    assert table.name_of(kept) == "kept.example"
    assert table.address_of("old.example") != old


def test_a_name_in_use_keeps_its_address_after_all_were_given() -> None:
    table = NameTable()
    kept = table.address_of("kept.example")

    for number in range(ADDRESSES.num_addresses + 10):
        assert table.address_of(f"{number}.example") != kept
        table.name_of(kept)

    assert table.name_of(kept) == "kept.example"


@given(st.lists(st.integers(0, 30)))
def test_the_table_is_one_to_one(numbers: list[int]) -> None:
    table = NameTable()
    for number in numbers:
        assert table.name_of(table.address_of(f"{number}.example")) == f"{number}.example"
