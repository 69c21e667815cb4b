import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.permissions.patterns.base import BadPattern
from agentos.permissions.patterns.domains import DomainPattern, parse_domain_pattern
from agentos.services.http.destination import Destination, parse_destination
from tests.support.runs.rows import each_row

PUBLIC = "192.0.2.1"  # stands for any address that needs no rule of its own


def matches(text: str, what: str, *, deny: bool = False) -> bool:
    return parse_domain_pattern(text).matches(parse_destination(what), deny=deny)


@each_row(
    ("text", "host", "expected"),
    [
        ("example.com", "example.com", True),
        ("example.com", "www.example.com", False),
        ("example.com", "example.org", False),
        ("EXAMPLE.com", "example.com", True),
        ("*.example.com", "www.example.com", True),
        ("*.example.com", "a.b.c.example.com", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", "badexample.com", False),
        ("*.example.com", "example.com.evil.org", False),
        ("*.com", "example.com", True),
        ("*.com", "com", False),
        ("*", "example.com", True),
        ("*", PUBLIC, True),
        ("*", "[2606:4700::1111]", True),
        ("*.bücher.example", "www.xn--bcher-kva.example", True),
        ("bücher.example", "xn--bcher-kva.example", True),
        (PUBLIC, PUBLIC, True),
        ("2606:4700::1111", "[2606:4700::1111]", True),
        ("[2606:4700::1111]", "[2606:4700::1111]", True),
    ],
)
def test_a_pattern_means_a_host_or_all_its_subdomains(text: str, host: str, expected: bool) -> None:
    assert matches(text, host) == matches(text, host, deny=True) == expected


@each_row(
    ("text", "what", "expected"),
    [
        # ports
        ("a.b", "https://a.b/", True),
        ("a.b", "http://a.b/", True),
        ("a.b", "http://a.b:443/", True),
        ("a.b", "https://a.b:8443/", False),
        ("a.b", "CONNECT a.b:443", True),
        ("a.b", "CONNECT a.b:22", False),
        ("a.b:22", "CONNECT a.b:22", True),
        ("a.b:22", "CONNECT a.b:443", False),
        ("a.b:*", "CONNECT a.b:22", True),
        ("*:22", "CONNECT a.b:22", True),
        ("[2606:4700::1]:22", "CONNECT [2606:4700::1]:22", True),
        # methods
        ("GET a.b", "GET https://a.b/x", True),
        ("GET a.b", "HEAD https://a.b/x", False),
        ("GET,HEAD a.b", "HEAD https://a.b/x", True),
        ("GET,HEAD a.b:*", "POST https://a.b/x", False),
        ("GET a.b", "CONNECT a.b:443", False),
        # paths
        ("a.b/repos/**", "https://a.b/repos/x", True),
        ("a.b/repos/**", "https://a.b/repos/", True),
        ("a.b/repos/**", "https://a.b/repos", False),
        ("a.b/repos/**", "https://a.b/repository", False),
        ("a.b/repos/**", "https://a.b/x/repos/y", False),
        ("a.b/repos/**", "https://a.b/Repos/x", False),
        ("a.b/repos/**", "https://a.b/?/repos/x", False),
        ("a.b/repos/**", "CONNECT a.b:443", False),
        ("a.b/**", "https://a.b", True),
        ("a.b/**", "CONNECT a.b:443", False),
        ("a.b/x", "https://a.b/x", True),
        ("a.b/x", "https://a.b/x?y", True),
        ("a.b/x", "https://a.b/x/", False),
        ("a.b/", "https://a.b", True),
        ("a.b/", "https://a.b/x", False),
        ("a.b/a%20b/**", "https://a.b/a%20b/c", True),
        ("GET a.b:8080/x/**", "http://a.b:8080/x/y", True),
        # what servers read differently
        ("a.b/repos/**", "https://a.b/repos/../x", False),
        ("a.b/repos/**", "https://a.b/repos/..", False),
        ("a.b/repos/**", "https://a.b/repos/./x", False),
        ("a.b/repos/**", "https://a.b/repos/%2e%2E/x", False),
        ("a.b/repos/**", "https://a.b/repos/.%2e", False),
        ("a.b/repos/**", "https://a.b/repos/%252e%252e/x", False),
        ("a.b/repos/**", "https://a.b/repos/..%2fx", False),
        ("a.b/repos/**", "https://a.b/repos/..%5cx", False),
        ("a.b/repos/**", "https://a.b/repos/..;/x", False),
        ("a.b/repos/**", "https://a.b/repos/%3b/x", False),
        ("a.b/repos/**", "https://a.b/repos//x", False),
        ("a.b/repos/**", "https://a.b//repos/x", False),
        ("a.b/repos/**", "https://a.b/repos/%00", False),
        ("a.b/repos/**", "https://a.b/repos/%c0%ae%c0%ae/x", False),
        ("a.b/repos/**", "https://a.b/repos/..a/b.../x", True),
        ("a.b/repos/**", "https://a.b/repos/%41%20", True),
        ("a.b", "https://a.b/group%2fproject/../x;y", True),
    ],
)
def test_a_grant_matches_exactly_what_is_sent(text: str, what: str, expected: bool) -> None:
    assert matches(text, what) == expected


@each_row(
    ("text", "what", "expected"),
    [
        ("a.b", "https://a.b:8443/", True),
        ("a.b:443", "https://a.b:8443/", False),
        ("GET a.b", "CONNECT a.b:443", True),
        ("a.b/admin/**", "CONNECT a.b:443", True),
        ("a.b/admin/**", "CONNECT a.b:22", True),
        ("a.b:443/admin/**", "CONNECT a.b:22", False),
        ("GET a.b", "POST https://a.b/", False),
        ("a.b/admin/**", "https://a.b/admin/x", True),
        ("a.b/admin/**", "https://a.b/admin", True),
        ("a.b/admin/**", "https://a.b/administrator", False),
        ("a.b/admin/**", "https://a.b/public", False),
        ("a.b/admin/**", "https://a.b/ADMIN/x", True),
        ("a.b/admin/**", "https://a.b/%61%64%6D%69%6e/x", True),
        ("a.b/admin/**", "https://a.b/public/../admin/x", True),
        ("a.b/admin/**", "https://a.b/public/%2e%2e/x", True),
        ("a.b/admin/**", "https://a.b//admin", True),
        ("a.b/admin/**", "https://a.b/public;x", True),
        ("a.b/admin", "https://a.b/admin/", True),
        ("a.b/admin", "https://a.b/%61dmin", True),
        ("a.b/admin", "https://a.b/admin/x", False),
        ("a.b/admin", "https://a.b/admin2", False),
        ("a.b/%61dmin", "https://a.b/admin", True),
        ("a.b/**", "https://a.b/", True),
        ("127.0.0.1", "http://127.0.0.1:8080", True),
        ("*", "http://127.0.0.1:8080", True),
    ],
)
def test_a_denial_matches_all_that_it_could_mean(text: str, what: str, expected: bool) -> None:
    assert matches(text, what, deny=True) == expected


@each_row("host", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "[::1]", "[::ffff:192.0.2.1]", "[fd00::1]"])
def test_an_address_that_is_not_public_is_granted_by_address_and_port_alone(host: str) -> None:
    for text in ("*", "*:*", f"{host}:*", host, f"{host}:81"):
        assert not matches(text, f"http://{host}/"), text
    assert matches(f"{host}:80", f"http://{host}/")
    assert matches(f"GET {host}:80/x/**", f"http://{host}/x/y")


@each_row(
    ("text", "hint"),
    [
        ("", "write '\\*'"),
        ("http://example.com", "without 'https://'"),
        ("10.0.0.0/8", "not a network"),
        ("example.com:", "a port is"),
        ("example.com:0", "a port is"),
        ("example.com:080", "a port is"),
        ("example.com:65536", "a port is"),
        ("example.com:http", "a port is"),
        ("[::1]x", "behind an address"),
        ("get example.com", "upper case"),
        ("GET, HEAD example.com", "upper case"),
        ("CONNECT example.com:22", "without CONNECT"),
        (" example.com", "upper case"),
        ("example.com/*", "no '\\*' but"),
        ("example.com/a/*/b", "no '\\*' but"),
        ("example.com/**/b", "no '\\*' but"),
        ("example.com/a**", "no '\\*' but"),
        ("example.com/a?b", "ends with the path"),
        ("example.com/a#b", "ends with the path"),
        ("example.com/a/../b", "never matches"),
        ("example.com/a//b", "never matches"),
        ("example.com/a%2fb", "never matches"),
        ("example.com//**", "never matches"),
        ("example.com/ü", "ASCII"),
        ("example.com/%", "ASCII"),
        ("example.com.", "leave it out"),
        ("127.1", "four decimal"),
        ("0x7f.1", "four decimal"),
        ("[0:0::1]", "shortest"),
        (".example.com", "'\\*.example.com'"),
        ("*example.com", "stands alone"),
        ("ex*mple.com", "stands alone"),
        ("www.*.com", "stands alone"),
        ("*.*.com", "stands alone"),
        ("**", "stands alone"),
        ("*.", "letters"),
        ("*.1.2.3.4", "IP address has no subdomains"),
        ("*.127.0.0.1", "IP address has no subdomains"),
        ("*.[::1]", "IP address has no subdomains"),
        ("a b.com", "upper case"),
        ("GET", "methods without a host: write 'GET \\*' for every host"),
        ("GET,HEAD", "methods without a host"),
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


@each_row(
    ("outer", "inner", "covers"),
    [
        ("*", "example.com", True),
        ("*", "*.example.com", True),
        ("*", "*", True),
        ("*", "2606:4700::1111", True),
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
        ("*", "::1", False),  # needs a rule with its address and port
        ("*:*", "127.0.0.1:80", False),
        ("127.0.0.1:*", "127.0.0.1:80", False),
        ("127.0.0.1:80", "127.0.0.1:80", True),
        ("127.0.0.1:80", "GET 127.0.0.1:80", True),
        ("a.b", "a.b:443", True),
        ("a.b", "a.b:22", False),
        ("a.b:*", "a.b", True),
        ("a.b", "a.b:*", False),
        ("a.b:443", "a.b", False),
        ("a.b", "GET a.b/x/**", True),
        ("GET a.b", "a.b", False),
        ("GET,HEAD a.b", "GET a.b", True),
        ("GET a.b", "GET,HEAD a.b", False),
        ("a.b/**", "a.b", False),
        ("a.b/**", "a.b/x/**", True),
        ("a.b/x/**", "a.b/x/y", True),
        ("a.b/x/**", "a.b/x", False),
        ("a.b/x/**", "a.b/y/**", False),
        ("a.b/x", "a.b/x", True),
        ("a.b/x", "a.b/x/**", False),
        ("GET *:*", "GET a.b:22/x", True),
    ],
)
def test_one_pattern_covers_another(outer: str, inner: str, covers: bool) -> None:
    assert parse_domain_pattern(outer).covers(parse_domain_pattern(inner), deny=False) == covers


HOSTS = ("a.b", "x.a.b", "c.d", "127.0.0.1", "192.0.2.1")
PATHS = ("", "/", "/x", "/x/", "/x/**", "/x/y", "/X/**", "/**", "/%78/**")
REQUESTS = ("/", "/x", "/x/", "/x/y", "/X/y", "/%78/y", "/x/../y", "/z", "/x//y", "/xy")

patterns = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(("", "GET ", "GET,POST ")),
    st.sampled_from((*HOSTS, "*", "*.a.b", "*.b")),
    st.sampled_from(("", ":*", ":80", ":443", ":22")),
    st.sampled_from(PATHS),
)
destinations = st.one_of(
    st.builds(
        Destination,
        st.sampled_from(("GET", "POST", "PUT")),
        st.sampled_from(HOSTS),
        st.sampled_from((22, 80, 443)),
        st.sampled_from(REQUESTS),
    ),
    st.builds(Destination, st.none(), st.sampled_from(HOSTS), st.sampled_from((22, 80, 443)), st.none()),
)


@given(patterns.map(parse_domain_pattern), patterns.map(parse_domain_pattern), destinations, st.booleans())
def test_what_a_covered_grant_matches_its_cover_matches(
    outer: DomainPattern, inner: DomainPattern, what: Destination, deny: bool
) -> None:
    if outer.covers(inner, deny=deny) and inner.matches(what, deny=False):
        assert outer.matches(what, deny=deny)
    if deny and outer.covers(inner, deny=True) and inner.matches(what, deny=True):
        assert outer.matches(what, deny=True)


@given(patterns.map(parse_domain_pattern), destinations)
def test_a_denial_matches_what_the_same_grant_matches(pattern: DomainPattern, what: Destination) -> None:
    assert pattern.matches(what, deny=True) >= pattern.matches(what, deny=False)
