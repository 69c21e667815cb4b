"""The HTTP client that sends to vendors: proxies and certificates as the environment names them.

What the environment names may be unusable: a proxy of an unknown kind, a file of certificates that isn't there. Then
only requests that need it fail, with the variable's name and what to do; a model on this host needs neither.
"""

import ipaddress
import os
import ssl
from collections.abc import Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

import httpx2
from attrs import define, field

from .provider import Denied

LIMITS: Final = httpx2.Limits(max_connections=None)  # the line sets the limit
CERTIFICATES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def make_client(base_url: str) -> httpx2.AsyncClient:
    """A client for one server, without read timeout, redirects and cookies.

    Takes 30 ms where certificates are read: where the server or a proxy has TLS.
    """
    return httpx2.AsyncClient(
        transport=Routes(base_url, find_proxies()),
        cookies=CookieJar(DefaultCookiePolicy(netscape=False)),
        follow_redirects=False,
    )


def find_proxies() -> Mapping[str, str]:
    """The proxies of the environment by scheme, ``all`` for any; ``no`` lists hosts that are reached without."""
    proxies = {scheme: url for scheme, url in getproxies_environment().items() if url}
    if "all" in proxies:
        proxies = {"http": proxies["all"], "https": proxies["all"], **proxies}
    return proxies


def is_direct(host: str, port: int | None, proxies: Mapping[str, str]) -> bool:
    """Whether NO_PROXY names a host: by name, domain, address, network, or with its port."""
    if proxy_bypass_environment(host if port is None else f"{host}:{port}", {"no": "", **proxies}):
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    for entry in proxies.get("no", "").split(","):
        try:
            if address in ipaddress.ip_network(entry.strip().strip("[]"), strict=False):
                return True
        except ValueError:
            continue
    return False


@define(eq=False)
class Routes(httpx2.AsyncBaseTransport):
    """Sends each request directly or by its scheme's proxy; ``unusable`` says of a route why it can't be used."""

    base_url: str
    proxies: Mapping[str, str]
    unusable: dict[str, str] = field(factory=dict)  # by scheme; "tls": certificates
    _direct: httpx2.AsyncHTTPTransport = field(init=False)
    _by_scheme: dict[str, httpx2.AsyncHTTPTransport] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        needs_tls = any(url.lower().startswith("https:") for url in (self.base_url, *self.proxies.values()))
        context = self._read_certificates() if needs_tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nothing
        self._direct = httpx2.AsyncHTTPTransport(verify=context, limits=LIMITS)
        for scheme in ("http", "https"):
            if (url := self.proxies.get(scheme)) is None:
                continue
            try:
                url = url if "://" in url else f"http://{url}"
                self._by_scheme[scheme] = httpx2.AsyncHTTPTransport(verify=context, limits=LIMITS, proxy=url)
            except (ImportError, ValueError, httpx2.InvalidURL):  # no package for SOCKS, an unknown scheme, no URL
                self.unusable[scheme] = _describe_proxy(scheme, url)

    def _read_certificates(self) -> ssl.SSLContext:
        try:
            return httpx2.create_ssl_context()
        except (OSError, ValueError) as error:
            named = ", ".join(f"{name}={value}" for name in CERTIFICATES if (value := os.environ.get(name)))
            why = getattr(error, "strerror", None) or error
            self.unusable["tls"] = (
                f"the certificates of {named or 'this host'} can't be read ({why}): name a file that is there, or "
                "unset the variable"
            )
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nothing

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; raises :class:`Denied` if its route can't be used."""
        scheme, host = request.url.scheme, request.url.host
        if scheme == "https" and (why := self.unusable.get("tls")) is not None:
            raise Denied(why)
        if scheme not in self.proxies or is_direct(host, request.url.port, self.proxies):
            return await self._direct.handle_async_request(request)
        if (why := self.unusable.get(scheme)) is not None:
            raise Denied(f"{why}, or add {host} to NO_PROXY")
        return await self._by_scheme[scheme].handle_async_request(request)

    async def aclose(self) -> None:
        for transport in (self._direct, *self._by_scheme.values()):
            await transport.aclose()


def _describe_proxy(scheme: str, url: str) -> str:
    """What is wrong with a proxy, without the password that its URL may have."""
    wanted = (f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")
    variable = next((name for name in wanted if os.environ.get(name)), wanted[1])
    kind = url.partition("://")[0]
    if kind in ("socks5", "socks5h"):
        return f"{variable} names a SOCKS proxy, which needs a package that isn't installed: pip install socksio"
    return f"{variable} names a proxy that can't be used ({kind}://…): set it to http://HOST:PORT"
