"""The [http] section."""

import os
from pathlib import Path

import certifi
import pytest

from agentos.config.load import ConfigError, load
from agentos.services.http.settings import HttpSettings
from tests.config.saying import loaded, said

pytestmark = pytest.mark.usefixtures("home")


def test_a_file_sets_authorities_a_proxy_and_a_resolver(home: Path) -> None:
    Path("firm.pem").write_bytes(Path(certifi.where()).read_bytes())

    config = loaded(
        '[http]\nca_file = "firm.pem"\nupstream_proxy = "http://proxy.firm:3128"\nresolver = "[2001:db8::53]:5353"\n'
    )

    assert config.http == HttpSettings(str(home / "firm.pem"), ("proxy.firm", 3128), ("2001:db8::53", 5353))


def test_without_the_section_the_hosts_own_hold() -> None:
    assert loaded("").http == HttpSettings(None, None, None)


@pytest.mark.parametrize(
    "lines", ['[http]\nca_file = "a.pem"', '[http]\ncassette = "a.har"', '[llm.offline]\nrules = "a.rules"']
)
def test_files_that_a_running_kernel_has_read_are_not_read_again(lines: str) -> None:
    """An agent may have written to them since."""
    made = {
        "a.pem": Path(certifi.where()).read_text(),
        "a.har": '{"log": {"entries": []}}',
        "a.rules": "[[rule]]\nreply = 'a'\n",
    }
    for name, text in made.items():
        Path(name).write_text(text)
        Path(f"new-{name}").write_text("?")
    running = loaded(lines)
    for name in made:
        Path(name).write_text("?")

    assert load("agentos.toml", running) == running
    with pytest.raises(ConfigError):
        load("agentos.toml")
    Path("agentos.toml").write_text(lines.replace('"a.', '"new-a.'))
    with pytest.raises(ConfigError):
        load("agentos.toml", running)


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("192.0.2.53", ("192.0.2.53", 53)),
        ("192.0.2.53:5353", ("192.0.2.53", 5353)),
        ("192.0.2.53:65535", ("192.0.2.53", 65535)),
        ("2001:db8::53", ("2001:db8::53", 53)),
        ("[2001:db8::53]", ("2001:db8::53", 53)),
    ],
)
def test_a_resolver_is_an_address_with_port_53_unless_it_has_another(text: str, server: tuple[str, int]) -> None:
    assert loaded(f'[http]\nresolver = "{text}"').http.resolver == server


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('ca_file = "missing.pem"', "can't be read: No such file"),
        ('ca_file = "a.py"', "no certificate"),
        ('ca_file = "fifo"', "can't be read: not a regular file"),
        ('cassette = "missing.har"', "can't be read: No such file"),
        ('cassette = "fifo"', "can't be read: not a regular file"),
        ('cassette = "a.har"', "a.har: entry 1: Object missing required field `request`"),
        ('upstream_proxy = "proxy:3128"', "expected http://HOST:PORT"),
        ('upstream_proxy = "http://proxy"', "expected http://HOST:PORT"),
        ('upstream_proxy = "https://proxy:3128"', "expected http://HOST:PORT"),
        ('upstream_proxy = "http://user:pass@proxy:3128"', "expected http://HOST:PORT"),
        ('upstream_proxy = "http://proxy:3128/path"', "expected http://HOST:PORT"),
        ('resolver = "dns.example"', "expected the address of a DNS server"),
        ('resolver = "192.0.2.53:0"', "expected the address of a DNS server"),
        ('resolver = "192.0.2.53:65536"', "expected the address of a DNS server"),
        ('resolver = "127.1"', "expected the address of a DNS server"),
        ('resolvers = "192.0.2.53"', "did you mean resolver?"),
    ],
)
def test_a_mistake_names_its_key_and_what_is_expected(line: str, why: str) -> None:
    os.mkfifo("fifo")
    Path("a.har").write_text('{"log": {"entries": [{}]}}')

    [mistake] = said(f"[http]\n{line}\n")

    assert mistake.startswith(f"agentos.toml:2: http.{line.split()[0]}: ")
    assert why in mistake
    assert "user:pass" not in mistake
