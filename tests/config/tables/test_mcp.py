"""The [mcp.servers.NAME] tables of a configuration file."""

from pathlib import Path

import pytest

from agentos.config.host_check import list_mcp_problems
from agentos.config.load import ConfigError, load
from agentos.config.reload import compare_configs
from agentos.mcp.servers import read_secrets
from agentos.mcp.settings import ServerSettings
from agentos_sdk.errors import Unavailable
from tests.support.runs.rows import each_row


def read(directory: Path, text: str) -> ServerSettings:
    """The only server of a file."""
    (directory / "agentos.toml").write_text(text)
    [server] = load(directory / "agentos.toml").mcp.values()
    return server


def mistakes(directory: Path, text: str) -> list[str]:
    (directory / "agentos.toml").write_text(text)
    with pytest.raises(ConfigError) as found:
        load(directory / "agentos.toml")
    return [f"{one.line}: {one.path}: {one.message}" for one in found.value.mistakes]


def test_a_server_whose_program_is_missing_hinders_no_other(tmp_path: Path) -> None:
    (tmp_path / "agentos.toml").write_text(
        '[mcp.servers.a]\ncommand = ["/nowhere/server"]\n[mcp.servers.b]\ncommand = ["/bin/true"]\n'
    )

    config = load(tmp_path / "agentos.toml")

    [fault] = config.faults
    assert (fault.line, fault.agent, list(config.mcp)) == (2, "mcp.a", ["a", "b"])
    assert fault.message.startswith("expected a program that can be run, got '/nowhere/server'")


def test_a_server_is_jailed_without_network_and_with_minimal_rights_unless_it_says_more(tmp_path: Path) -> None:
    server = read(tmp_path, '[mcp.servers.github]\ncommand = ["python3", "-m", "x"]\n')

    assert server.spec is not None
    assert (server.spec.isolation, server.spec.network, server.spec.command) == (
        "standard",
        "none",
        ("python3", "-m", "x"),
    )
    assert server.permissions.level == "minimal"
    assert (server.share, server.sampling, server.timeout) == ("agent", False, 60.0)
    assert (server.spec.restart, server.spec.max_restarts) == ("permanent", 5)
    assert server.spec.backoff is not None
    assert (server.spec.backoff.first, server.spec.backoff.min, server.spec.backoff.max) == (0.0, 1.0, 30.0)


def test_everything_that_can_be_said(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    server = read(
        tmp_path,
        """
        [mcp.servers.github]
        command = ["python3", "/agent/server.py"]
        args = ["--all"]
        code = "code"
        network = "filtered"
        share = "all"
        sampling = true
        timeout = "5m"
        limits = { memory = "64M" }
        env = { PLAIN = "x", TOKEN = "env:GITHUB_TOKEN", KEY = "file:key" }
        permissions = { allow = { domains = ["api.github.com"] } }
        """,
    )

    assert server.spec is not None
    assert (server.spec.args, server.spec.network, server.spec.limits.memory) == (("--all",), "filtered", 64 << 20)
    assert server.spec.env == {"PLAIN": "x"}
    assert server.secrets == {"TOKEN": "env:GITHUB_TOKEN", "KEY": f"file:{tmp_path}/key"}
    assert [rule.text for rule in server.permissions.rules if rule.kind == "domains"] == ["api.github.com"]
    assert (server.share, server.sampling, server.timeout) == ("all", True, 300.0)


def test_a_server_may_be_elsewhere(tmp_path: Path) -> None:
    server = read(tmp_path, '[mcp.servers.far]\nurl = "https://mcp.example.com/mcp"\n')

    assert (server.spec, server.url) == (None, "https://mcp.example.com/mcp")


def test_each_mistake_has_its_line_and_its_fix(tmp_path: Path) -> None:
    assert mistakes(tmp_path, '[mcp.servers."Git.Hub"]\nurl = "https://a.test/"\n') == [
        "1: mcp.servers['Git.Hub']: expected a name of 1 to 32 lower-case letters, digits, '_' or '-', "
        "begun by a letter or digit, got 'Git.Hub'"
    ]
    assert mistakes(tmp_path, "[mcp.servers.a]\n") == [
        "1: mcp.servers.a: expected exactly one of command, script and url"
    ]
    assert mistakes(tmp_path, '[mcp.servers.a]\nurl = "ftp://a.test/"\nnetwork = "host"\n') == [
        "2: mcp.servers.a.url: expected https://HOST/PATH, or http:// for a server on this host: a URL begins with "
        "http:// or https://",
        "3: mcp.servers.a.network: only a server that is a program has this, and this one has a url",
    ]
    assert mistakes(tmp_path, '[mcp.servers.a]\ncommand = ["x"]\nisolation = "none"\nshare = "some"\n') == [
        "3: mcp.servers.a.isolation: expected strict or standard, got 'none'",
        "4: mcp.servers.a.share: expected agent or all, got 'some'",
    ]
    assert mistakes(tmp_path, '[mcp.servers.a]\ncommand = ["x"]\nenv = { TOKEN = "env:" }\ntimeout = 0\n') == [
        "3: mcp.servers.a.env.TOKEN: expected where the value is, as 'env:NAME' or 'file:PATH'",
        "4: mcp.servers.a.timeout: expected a duration from 1s to 1h, got 0",
    ]
    assert mistakes(tmp_path, "[mcp]\nservers = 7\n") == [
        "2: mcp.servers: expected a table for each server, [mcp.servers.NAME]"
    ]


@each_row("url", ["https://", "http://[::1", "https://a.test:0/", "https://u:p@a.test/", "http://a b/", "//a.test/"])
def test_a_server_has_a_url_to_which_a_request_can_be_sent(tmp_path: Path, url: str) -> None:
    [mistake] = mistakes(tmp_path, f'[mcp.servers.a]\nurl = "{url}"\n')

    assert mistake.startswith(
        "2: mcp.servers.a.url: expected https://HOST/PATH, or http:// for a server on this host: "
    )


@each_row("key, value", [("url", "5"), ("command", "[5]"), ("script", "[]"), ("command", '"cat"'), ("url", "[]")])
def test_what_runs_counts_as_given_where_it_is_no_valid_value(tmp_path: Path, key: str, value: str) -> None:
    [mistake] = mistakes(tmp_path, f"[mcp.servers.a]\n{key} = {value}\n")

    assert mistake.startswith(f"2: mcp.servers.a.{key}")


def test_check_warns_of_shared_servers_and_of_secrets_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    file = tmp_path / "agentos.toml"
    file.write_text('[mcp.servers.a]\ncommand = ["cat"]\nshare = "all"\nenv = { TOKEN = "env:NO_SUCH_TOKEN" }\n')

    assert list(list_mcp_problems(load(file))) == [
        'mcp.servers.a: share = "all": what one agent gives to it another agent may get from it',
        "on this host the MCP server a would not start: env.TOKEN: the kernel's environment has no variable "
        "NO_SUCH_TOKEN",
    ]
    assert read(tmp_path, '[mcp.servers.a]\ncommand = ["cat"]\n').warning is None


def test_secrets_are_read_when_a_server_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = read(tmp_path, '[mcp.servers.a]\ncommand = ["cat"]\nenv = { TOKEN = "env:A_TOKEN" }\n')

    monkeypatch.setenv("A_TOKEN", "long enough")
    assert read_secrets(server) == {"TOKEN": "long enough"}
    monkeypatch.setenv("A_TOKEN", "short")
    with pytest.raises(Unavailable, match=r"env\.TOKEN: expected 8 to 4096 printable ASCII characters"):
        read_secrets(server)


def test_a_reload_names_the_servers_that_differ(tmp_path: Path) -> None:
    def config(text: str) -> object:
        file = tmp_path / "agentos.toml"
        file.write_text(text)
        return load(file)

    old = config('[mcp.servers.a]\ncommand = ["cat"]\n[mcp.servers.b]\ncommand = ["cat"]\n')
    new = config('[mcp.servers.a]\ncommand = ["cat", "-"]\n[mcp.servers.b]\ncommand = ["cat"]\n')

    assert compare_configs(old, new, ()).settings == ["mcp.servers.a"]  # type: ignore[arg-type]
