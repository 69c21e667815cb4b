"""Server names are read from every real ClientHello, and from nothing that servers could read differently."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.gateways.http_proxy.client_hello import MAX_HELLO_BYTES, HelloReader, NoServerName
from tests.support.runs.rows import each_row

from .hellos import counted, extension, hello, real_hello, records, server_name

NAME = b"api.example.com"
PLAIN = hello(server_name(NAME))
PADDING = extension(21, b"\0" * 9000)


def read_at_once(data: bytes) -> str | None:
    return HelloReader().feed(data)


@pytest.mark.parametrize("latest", [True, False])
def test_the_name_in_a_hello_of_openssl_is_read(latest: bool) -> None:
    assert read_at_once(real_hello("Api.Example.com", latest=latest)) == "api.example.com"


def test_a_hello_without_a_name_is_refused() -> None:
    with pytest.raises(NoServerName, match="no server name"):
        read_at_once(real_hello(None))
    with pytest.raises(NoServerName, match="no extensions"):
        read_at_once(records(hello()))


@given(st.lists(st.integers(1, 400), max_size=30), st.lists(st.integers(1, 700), max_size=30))
def test_a_hello_is_read_however_it_is_fragmented(records_of: list[int], reads_of: list[int]) -> None:
    sent = records(hello(extension(0x0A0A, b"grease" * 40), server_name(NAME)), records_of)
    reader, ends = HelloReader(), [min(sum(reads_of[:count]), len(sent)) for count in range(len(reads_of) + 1)]
    pieces = [sent[begin:end] for begin, end in pairwise([*ends, len(sent)]) if begin < end]

    found = [reader.feed(piece) for piece in pieces]

    assert (found, bytes(reader.received)) == ([None] * (len(pieces) - 1) + [NAME.decode()], sent)


def test_a_hello_of_one_byte_records_is_read_byte_by_byte() -> None:
    reader, sent = HelloReader(), records(PLAIN, [1] * len(PLAIN))

    found = [reader.feed(sent[at : at + 1]) for at in range(len(sent))]

    assert found == [None] * (len(sent) - 1) + [NAME.decode()]


def test_what_follows_the_hello_is_kept_for_the_server() -> None:
    early = records(PLAIN) + b"\x17\3\3\0\5early" + b"x" * (2 * MAX_HELLO_BYTES)
    reader = HelloReader()

    assert reader.feed(early) == NAME.decode()
    assert reader.received == early


def test_an_encrypted_hello_beside_the_outer_name_is_no_reason_to_refuse() -> None:
    assert read_at_once(records(hello(extension(0xFE0D, b"\0" * 200), server_name(NAME)))) == NAME.decode()


@each_row(
    ("sent", "why"),
    [
        (b"GET / HTTP/1.1\r\n", "isn't TLS"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "isn't TLS"),
        (b"\x80\x2e\1\3\1", "isn't TLS"),  # SSL 2's
        (b"\x17\3\3\0\1x", "isn't TLS"),
        (b"\x16\2\0\0\1x", "isn't TLS"),
        (b"\x16\3\1\0\0", "record of 0 bytes"),
        (b"\x16\3\1\x40\1", "record of 16385 bytes"),
        (records(b"\2\0\0\1x"), "isn't a ClientHello"),
        (records(hello(server_name(b"a.example"), server_name(b"b.example"))), "two extensions 0"),
        (records(hello(server_name(b"a.example", b"b.example"))), "else than one host name"),
        (records(hello(server_name(b"a.example", kind=1))), "else than one host name"),
        (records(hello(server_name())), "malformed"),
        (records(hello(server_name(b""))), "isn't a host name"),
        (records(hello(server_name(b"a.example\0.evil.example"))), "isn't a host name"),
        (records(hello(server_name("ä.example".encode()))), "isn't a host name"),
        (records(hello(server_name(NAME)) + b"\1\0"), "another message follows"),
        (records(hello(extension(0, b"\0\x20"))), "malformed"),
        (records(b"\1" + counted(PLAIN[4:] + b"\0\0", 3)), "data after its extensions"),
        (records(hello(PADDING, extension(22, b"\0" * 9000))), "more than 16 KiB"),
        (records(b"\1\xff\xff\xff"), "more than 16 KiB"),
        (records(b"\1" + (MAX_HELLO_BYTES - 3).to_bytes(3)), "more than 16 KiB"),
    ],
)
def test_what_is_no_unambiguous_hello_is_refused(sent: bytes, why: str) -> None:
    with pytest.raises(NoServerName, match=why):
        read_at_once(sent)


def test_an_endless_hello_is_refused_before_it_takes_more_memory() -> None:
    reader, announced = HelloReader(), b"\1" + (16_000).to_bytes(3)
    reader.feed(records(announced))

    with pytest.raises(NoServerName, match="more than 16 KiB"):
        while True:
            reader.feed(records(b"x"))

    assert len(reader.received) <= MAX_HELLO_BYTES + 6


def test_an_incomplete_hello_may_have_16_kib() -> None:
    reader = HelloReader()
    whole = records(b"\1" + (16_000).to_bytes(3) + b"x" * 5000, [4] + [1] * 5000)

    assert reader.feed(whole[:MAX_HELLO_BYTES]) is None
    with pytest.raises(NoServerName, match="more than 16 KiB"):
        reader.feed(whole[MAX_HELLO_BYTES : MAX_HELLO_BYTES + 1])


@given(st.binary(max_size=300), st.integers(0, 300), st.binary(min_size=1, max_size=4))
def test_no_bytes_do_anything_else_than_return_a_name_or_be_refused(data: bytes, at: int, changed: bytes) -> None:
    sent = records(PLAIN)
    for given_bytes in (data, b"\x16\3\1" + data, sent[:at] + changed + sent[at + len(changed) :]):
        try:
            found = read_at_once(given_bytes)
        except NoServerName:
            continue
        assert found is None or found == found.lower()


def test_a_hello_may_have_as_many_bytes_as_is_said() -> None:
    name = server_name(b"a.example")
    padding = extension(21, b"\0" * (MAX_HELLO_BYTES - len(hello(name, extension(21, b"")))))

    assert HelloReader().feed(records(hello(name, padding))) == "a.example"
