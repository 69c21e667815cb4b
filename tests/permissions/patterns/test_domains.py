import socket
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.permissions.patterns.base import BadPattern
from agentos.permissions.patterns.domains import host_of, parse_domain_pattern


def matches(text: str, host: str) -> bool:
    pattern = parse_domain_pattern(text)
    assert pattern.matches(host, deny=True) == pattern.matches(host, deny=False)
    return pattern.matches(host, deny=False)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://example.com", "example.com"),
        ("https://example.com/", "example.com"),
        ("HTTPS://EXAMPLE.Com./a/b", "example.com"),
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
        ("http://bücher。example", "xn--bcher-kva.example"),  # an ideographic full stop is a dot
        ("http://\uff45\uff58\uff41\uff4d\uff50\uff4c\uff45\uff0ecom", "example.com"),  # full width
        ("http://faß.de", "xn--fa-hia.de"),
        ("http://exa\u00admple.com", "example.com"),  # a soft hyphen is nothing
        # IPv4, as the resolver reads it
        ("http://127.0.0.1:80", "127.0.0.1"),
        ("http://127.0.0.1./", "127.0.0.1"),
        ("http://127.1", "127.0.0.1"),
        ("http://0x7f.1", "127.0.0.1"),
        ("http://0X7F.1", "127.0.0.1"),
        ("http://0177.0.0.01", "127.0.0.1"),
        ("http://2130706433", "127.0.0.1"),
        ("http://0x7f000001", "127.0.0.1"),
        ("http://0", "0.0.0.0"),
        ("http://\uff11\uff12\uff17.0.0.1", "127.0.0.1"),
        ("http://169.254.43518", "169.254.169.254"),
        # IPv6
        ("http://[::1]/", "::1"),
        ("http://[::1]:8080", "::1"),
        ("http://[0:0:0:0:0:0:0:1]", "::1"),
        ("http://[2001:DB8::0001]", "2001:db8::1"),
        ("http://[::ffff:127.0.0.1]", "127.0.0.1"),
        ("http://[::FFFF:7f00:1]", "127.0.0.1"),
    ],
)
def test_a_host_has_one_spelling(url: str, host: str) -> None:
    assert host_of(url) == host


@pytest.mark.parametrize(
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
        ("http://a..", "letters"),
        ("http://-a.com", "letters"),
        ("http://a*.com", "letters"),
        ("http://a,b.com", "letters"),
        ("http://" + "a" * 64 + ".com", "letters"),
        ("http://" + "a." * 130 + "com", "letters"),
        ("http://" + "a" * 100_000, "no host's name"),
        ("http://[]", "IPv6"),
        ("http://[example.com]", "IPv6"),
        ("http://[127.0.0.1]", "IPv6"),
        ("http://[fe80::1%eth0]", "without a zone"),
        ("http://[fe80::1%25eth0]", "without a zone"),
        ("http://[v1.x]", "IPv6"),
        ("http://256.1.1.1", "IPv4"),
        ("http://1.2.3.4.5", "IPv4"),
        ("http://08.1.1.1", "IPv4"),
        ("http://4294967296", "IPv4"),
        ("http://a.1", "IPv4"),
        ("http://a.0x1", "IPv4"),
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


def test_a_url_that_is_refused_is_not_told_in_the_error() -> None:
    with pytest.raises(ValueError) as refused:  # its password would end up in a log
        host_of("http://user:s3cret@example.com")

    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "host", "expected"),
    [
        ("example.com", "example.com", True),
        ("example.com", "www.example.com", False),
        ("example.com", "example.org", False),
        ("EXAMPLE.com.", "example.com", True),
        ("*.example.com", "www.example.com", True),
        ("*.example.com", "a.b.c.example.com", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", "badexample.com", False),
        ("*.example.com", "example.com.evil.org", False),
        ("*.com", "example.com", True),
        ("*.com", "com", False),
        ("*", "example.com", True),
        ("*", "127.0.0.1", True),
        ("*", "::1", True),
        ("*.bücher.example", "www.xn--bcher-kva.example", True),
        ("bücher.example", "xn--bcher-kva.example", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("127.1", "127.0.0.1", True),
        ("0x7f.1", "127.0.0.1", True),
        ("::1", "::1", True),
        ("[::1]", "::1", True),
        ("[0:0::1]", "::1", True),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
    ],
)
def test_a_pattern_means_a_host_or_all_its_subdomains(text: str, host: str, expected: bool) -> None:
    assert matches(text, host) == expected


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "write '\\*'"),
        ("http://example.com", "host alone"),
        ("example.com/path", "host alone"),
        ("10.0.0.0/8", "host alone"),
        ("example.com:443", "no port"),
        ("*.example.com:443", "no port"),
        ("*:443", "no port"),
        ("[::1]:443", "no port"),
        ("1.2.3.4:80", "no port"),
        (".example.com", "'\\*.example.com'"),
        ("*example.com", "stands alone"),
        ("ex*mple.com", "stands alone"),
        ("www.*.com", "stands alone"),
        ("*.*.com", "stands alone"),
        ("**", "stands alone"),
        ("*.", "letters"),
        ("*.1.2.3.4", "IP address has no subdomains"),
        ("*.127.1", "IP address has no subdomains"),
        ("*.[::1]", "IP address has no subdomains"),
        ("a b.com", "no host"),
        ("example.com\n", "no host"),
        ("user@example.com", "letters"),
        ("exam?le.com", "letters"),
        ("a.256", "IPv4"),
        ("xn--a.com", "internationalised"),
    ],
)
def test_a_pattern_that_can_match_no_host_is_refused_with_what_to_write_instead(text: str, hint: str) -> None:
    with pytest.raises(BadPattern, match=hint):
        parse_domain_pattern(text)


@given(st.ip_addresses(v=4), st.sampled_from(["http://{}", "http://0{:o}/", "http://{:#x}", "http://{:#X}."]))
def test_an_ipv4_address_written_as_one_number_is_that_address(address: IPv4Address, url: str) -> None:
    assert host_of(url.format(int(address))) == str(address)


@given(st.ip_addresses())
def test_no_wildcard_but_the_whole_one_means_an_address(address: IPv4Address | IPv6Address) -> None:
    written = f"[{address}]" if address.version == 6 else str(address)
    host = host_of(f"http://{written}/")

    assert matches("*", host)
    assert matches(written, host)
    assert not any(matches(text, host) for text in ("*.com", "*.a", "*.ff", "*.example.com"))


@given(st.text(max_size=20))
def test_whatever_has_a_host_is_ascii_and_is_spelled_so_again(text: str) -> None:
    try:
        host = host_of(f"http://{text}")
    except ValueError:
        return
    assert host.isascii()
    assert host == host.lower()
    assert host_of(f"http://[{host}]" if ":" in host else f"http://{host}") == host
    assert parse_domain_pattern(host).matches(host, deny=False)


@given(st.text(alphabet="0123456789abcdefx.", min_size=1, max_size=12))
def test_no_name_is_an_address_to_the_resolver_but_a_name_to_the_rules(text: str) -> None:
    try:
        host = host_of(f"http://{text}")
    except ValueError:
        return
    try:
        address = socket.inet_ntoa(socket.inet_aton(text.removesuffix(".")))
    except OSError:
        assert not host.rpartition(".")[2].isdigit()
    else:
        assert host == address


@pytest.mark.parametrize(
    ("outer", "inner", "covers"),
    [
        ("*", "example.com", True),
        ("*", "*.example.com", True),
        ("*", "*", True),
        ("*", "::1", True),
        ("*.example.com", "*", False),
        ("*.example.com", "*.example.com", True),
        ("*.example.com", "*.a.example.com", True),
        ("*.example.com", "a.example.com", True),
        ("*.example.com", "example.com", False),
        ("*.a.example.com", "*.example.com", False),
        ("example.com", "example.com", True),
        ("EXAMPLE.com", "example.com", True),
        ("example.com", "*.example.com", False),
        ("example.com", "*", False),
        ("127.0.0.1", "127.1", True),
    ],
)
def test_one_pattern_covers_another(outer: str, inner: str, covers: bool) -> None:
    assert parse_domain_pattern(outer).covers(parse_domain_pattern(inner), deny=False) == covers
