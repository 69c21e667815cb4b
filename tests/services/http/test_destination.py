import socket
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.services.http.addresses import address_text
from agentos.services.http.destination import Destination, parse_destination, parse_tunnel, parse_url
from tests.support.runs.rows import each_row


def host_of(url: str) -> str:
    return parse_url(url, "GET")[0].host


@each_row(
    ("url", "host"),
    [
        ("http://example.com", "example.com"),
        ("https://example.com/", "example.com"),
        ("HTTPS://EXAMPLE.Com/a/b", "example.com"),
        ("http://example.com:8080/x", "example.com"),
        ("http://example.com?x=http://other.com/", "example.com"),
        ("http://example.com#@other.com", "example.com"),
        ("http://example.com/@other.com", "example.com"),
        ("http://example.com?@other.com", "example.com"),
        ("http://localhost:80", "localhost"),
        ("http://my_service.internal", "my_service.internal"),
        ("http://r3---sn-abc.example.com", "r3---sn-abc.example.com"),
        # internationalised
        ("http://bücher.example", "xn--bcher-kva.example"),
        ("http://BÜCHER.example", "xn--bcher-kva.example"),
        ("http://xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("http://XN--BCHER-KVA.example", "xn--bcher-kva.example"),
        ("http://faß.de", "xn--fa-hia.de"),
        # addresses
        ("http://127.0.0.1:80", "127.0.0.1"),
        ("http://[::1]/", "::1"),
        ("http://[::1]:8080", "::1"),
        ("http://[2001:DB8::1]", "2001:db8::1"),
        ("http://[::ffff:127.0.0.1]", "::ffff:127.0.0.1"),
    ],
)
def test_a_host_has_one_spelling(url: str, host: str) -> None:
    assert host_of(url) == host


@each_row(
    ("url", "why"),
    [
        ("", "begins with http"),
        ("example.com", "begins with http"),
        ("//example.com", "begins with http"),
        ("ftp://example.com", "begins with http"),
        ("file:///etc/passwd", "begins with http"),
        ("http:example.com", "begins with http"),
        ("http:/example.com", "begins with http"),
        ("http://", "letters"),
        ("http:///x", "letters"),
        ("http://:80", "letters"),
        ("http://user@example.com", "user name"),
        ("http://user:pass@example.com", "user name"),
        ("http://good.com:80@evil.com", "user name"),
        ("http://@evil.com", "user name"),
        ("http://good.com\\@evil.com", "backslashes"),
        ("http:\\\\evil.com", "backslashes"),
        ("http://good.com\\.evil.com", "backslashes"),
        (" http://example.com", "spaces"),
        ("http://example.com/a b", "spaces"),
        ("http://exam\tple.com", "control"),
        ("http://example.com\n", "control"),
        ("http://example.com\r\nHost: evil", "control"),
        ("http://example.com\0.evil.com", "control"),
        ("http://example.com\u3000", "spaces"),
        ("http://example.com\x85", "control"),
        ("http://example\udcff.com", "control"),
        ("http://example.com:", "port"),
        ("http://example.com:x", "port"),
        ("http://example.com:65536", "port"),
        ("http://example.com:-1", "port"),
        ("http://example.com:\uff18\uff10", "port"),
        ("http://example.com:80:80", "port"),
        ("http://::1/", "port"),
        ("http://[::1", "port"),
        ("http://[::1]x", "port"),
        ("http://x[::1]", "port"),
        ("http://[[::1]]", "port"),
        ("http://ex%61mple.com", "letters"),
        ("http://a..b", "letters"),
        ("http://.a", "letters"),
        ("http://a..", "dot"),
        ("http://-a.com", "letters"),
        ("http://a*.com", "letters"),
        ("http://a,b.com", "letters"),
        ("http://" + "a" * 64 + ".com", "letters"),
        ("http://" + "a." * 130 + "com", "at most 253"),
        ("http://" + "a" * 8000, "at most 253"),
        ("http://[]", "IPv6"),
        ("http://[example.com]", "IPv6"),
        ("http://[127.0.0.1]", "IPv6"),
        ("http://[fe80::1%eth0]", "without a zone"),
        ("http://[fe80::1%25eth0]", "without a zone"),
        ("http://[v1.x]", "IPv6"),
        ("http://256.1.1.1", "IPv4"),
        ("http://1.2.3.4.5", "IPv4"),
        ("http://4294967296", "IPv4"),
        ("http://a.1", "IPv4"),
        ("http://a.0x1", "IPv4"),
        ("http://08.1.1.1", "IPv4"),
        ("http://127.1", "IPv4"),
        ("http://0x7f.1", "IPv4"),
        ("http://0X7F.1", "IPv4"),
        ("http://0177.0.0.01", "IPv4"),
        ("http://127.0.0.01", "IPv4"),
        ("http://017700000001", "IPv4"),
        ("http://2130706433", "IPv4"),
        ("http://0x7f000001", "IPv4"),
        ("http://0", "IPv4"),
        ("http://169.254.43518", "IPv4"),
        ("http://\uff11\uff12\uff17.0.0.1", "internationalised"),
        ("http://[0:0:0:0:0:0:0:1]", "shortest"),
        ("http://[2001:db8::0001]", "shortest"),
        ("http://[::FFFF:7f00:1]", "shortest"),
        ("http://127.0.0.1./", "ends without a dot"),
        ("http://example.com./", "ends without a dot"),
        ("http://bücher\u3002example", "internationalised"),  # an ideographic full stop
        ("http://\uff45\uff58\uff41mple.com", "internationalised"),  # full width
        ("http://exa\u00admple.com", "internationalised"),  # a soft hyphen
        ("http://①②⑦.0.0.1", "internationalised"),
        ("http://bu\u0308cher.example", "internationalised"),  # not composed
        ("http://example.com:080", "port"),
        ("http://example.com:0", "port"),
        ("http://example.com/\u00fc", "ASCII"),
        ("http://example.com/%", "ASCII"),
        ("http://example.com/%4", "ASCII"),
        ("http://example.com/%zz", "ASCII"),
        ("http://example.com/".ljust(8193, "a"), "at most 8192"),
        ("http://" + "ü." * 4000 + "com/", "at most 253"),
        ("http://xn--a", "internationalised"),
        ("http://xn--zzzzzz99.x", "internationalised"),
        ("http://xn--bcher-KVA-.x", "letters"),
        ("http://℀.com", "internationalised"),  # would become a/c.com
        ("http://\u202ecom.x", "internationalised"),
    ],
)
def test_a_url_that_two_programs_could_read_differently_has_no_host(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        host_of(url)


def test_a_url_may_have_8192_characters() -> None:
    target = "/".ljust(8192 - len("http://example.com"), "a")

    assert parse_url(f"http://example.com{target}", "GET")[1] == target


def test_a_url_that_is_refused_is_not_told_in_the_error() -> None:
    with pytest.raises(ValueError) as refused:  # its password would end up in a log
        host_of("http://user:s3cret@example.com")

    assert "s3cret" not in str(refused.value)


@each_row(
    ("url", "path", "target"),
    [
        ("https://example.com", "/", "/"),
        ("https://example.com?a=b", "/", "/?a=b"),
        ("https://example.com/a/%2e%2E//b?c#d", "/a/%2e%2E//b", "/a/%2e%2E//b?c"),
        ("https://example.com/a?b?c=/../", "/a", "/a?b?c=/../"),
        ("https://example.com/a|b{c}[d]", "/a|b{c}[d]", "/a|b{c}[d]"),
        ("https://example.com/#a?b", "/", "/"),
    ],
)
def test_path_and_query_are_sent_as_they_were_written(url: str, path: str, target: str) -> None:
    destination, sent = parse_url(url, "GET")

    assert (destination.path, sent) == (path, target)


@each_row("method", ["", "get", "CONNECT", "GET ", "GET\r\nX: y", "G\u00cbT", "A" * 33])
def test_a_method_is_a_word_in_upper_case(method: str) -> None:
    with pytest.raises(ValueError, match="method"):
        parse_url("https://example.com", method)


@each_row(
    ("text", "destination", "shown"),
    [
        ("example.com", Destination("GET", "example.com", 443, "/"), "GET https://example.com/"),
        ("example.com:8080/x", Destination("GET", "example.com", 8080, "/x"), "GET https://example.com:8080/x"),
        ("http://[::1]/x?y", Destination("GET", "::1", 80, "/x", "http"), "GET http://[::1]/x"),
        ("POST https://a.b/c", Destination("POST", "a.b", 443, "/c"), "POST https://a.b/c"),
        ("GET http://a.b:443/", Destination("GET", "a.b", 443, "/", "http"), "GET http://a.b:443/"),
        ("CONNECT a.b:443", Destination(None, "a.b", 443, None), "CONNECT a.b:443"),
        ("CONNECT [::1]:22", Destination(None, "::1", 22, None), "CONNECT [::1]:22"),
    ],
)
def test_a_destination_is_shown_as_a_person_writes_it(text: str, destination: Destination, shown: str) -> None:
    assert parse_destination(text) == destination
    assert str(destination) == shown


@each_row("authority", ["example.com", "example.com:", "example.com:0", "a@b:1", "https://a.b:1", "a.b:1/"])
def test_a_tunnel_is_to_a_host_and_a_port(authority: str) -> None:
    with pytest.raises(ValueError):
        parse_tunnel(authority)


@given(st.ip_addresses(), st.integers(1, 65535))
def test_an_address_is_itself(address: IPv4Address | IPv6Address, port: int) -> None:
    text = address_text(address)
    written = f"[{text}]" if address.version == 6 else text

    assert parse_url(f"http://{written}:{port}/", "GET")[0] == Destination("GET", text, port, "/", "http")


@given(st.ip_addresses(v=4), st.sampled_from(["http://{}", "http://0{:o}/", "http://{:#x}", "http://{:#X}."]))
def test_an_address_written_as_one_number_is_refused(address: IPv4Address, url: str) -> None:
    with pytest.raises(ValueError):
        host_of(url.format(int(address)))


@given(st.text(max_size=20))
def test_whatever_has_a_host_is_ascii_and_is_spelled_so_again(text: str) -> None:
    try:
        host = host_of(f"http://{text}")
    except ValueError:
        return
    assert host.isascii()
    assert host == host.lower()
    assert host_of(f"http://[{host}]" if ":" in host else f"http://{host}") == host


@given(st.text(alphabet="0123456789abcdefx.", min_size=1, max_size=12))
def test_no_name_is_an_address_to_the_resolver_but_a_name_to_the_rules(text: str) -> None:
    try:
        host = host_of(f"http://{text}")
    except ValueError:
        return
    try:
        address = socket.inet_ntoa(socket.inet_aton(text))
    except OSError:
        assert not host.rpartition(".")[2].isdigit()
    else:
        assert host == address
