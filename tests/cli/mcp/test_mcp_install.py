"""``agentos mcp install``, ``token``, ``clients`` and ``revoke``: entries, and the clients' own configuration files."""

import fcntl
import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agentos.userland.cli.main import cli
from agentos.userland.mcp import clients
from agentos.userland.mcp.install import CLIENTS, find_file

DESKTOP = ".config/Claude/claude_desktop_config.json"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own, which is the current directory."""
    for name in ("XDG_CONFIG_HOME", "AGENTOS_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def mcp(*words: str) -> Result:
    return CliRunner().invoke(cli, ["mcp", *words, "--state-dir", "state"])


def entry_of(name: str) -> clients.ClientEntry:
    found = clients.load(Path("state").absolute(), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", CLIENTS)
def test_the_clients_file_gets_our_server_with_absolute_paths(home: Path, name: str) -> None:
    done = mcp("install", name)

    assert done.exit_code == 0, done.output
    client = CLIENTS[name]
    server = json.loads((home / client.linux).read_text())[client.table]["agentos"]
    assert server.get("type") == ("stdio" if name in ("claude-code", "vscode") else None)
    command = [server["command"], *server["args"]]
    assert command[command.index("mcp") :][:3] == ["mcp", "--client", name]
    assert command[-1] == str(home / "state")
    assert all(os.path.isabs(word) for word in (command[0], command[command.index("--socket") + 1]))
    assert f"server 'agentos' written to {home / client.linux}" in done.output
    assert (entry_of(name).level, entry_of(name).elicitation, entry_of(name).transport) == ("standard", "off", "stdio")


def test_a_file_keeps_its_other_servers_its_mode_and_a_copy(home: Path) -> None:
    file = home / DESKTOP
    file.parent.mkdir(parents=True)
    former = '{\n    "mcpServers": {"github": {"command": "gh"}},\n    "theme": "dark"\n}\n'
    file.write_text(former)
    file.chmod(0o640)

    done = mcp("install", "claude-desktop")

    assert json.loads(file.read_text())["mcpServers"]["github"] == {"command": "gh"}
    assert file.read_text().endswith('},\n    "theme": "dark"\n}\n')
    assert file.stat().st_mode & 0o777 == 0o640
    [copy] = file.parent.glob("*.bak")
    assert copy.read_text() == former
    assert f"; as it was: {copy}" in done.output


def test_a_symlink_to_the_file_stays_one(home: Path) -> None:
    real = home / "dotfiles" / "mcp.json"
    real.parent.mkdir()
    real.write_text("{}")
    (home / ".cursor").mkdir()
    (home / ".cursor/mcp.json").symlink_to(real)

    mcp("install", "cursor")

    assert (home / ".cursor/mcp.json").is_symlink()
    assert "agentos" in json.loads(real.read_text())["mcpServers"]


def test_a_broken_file_is_left_as_it_is_and_no_entry_is_made(home: Path) -> None:
    (home / ".cursor").mkdir()
    (home / ".cursor/mcp.json").write_text('{\n"mcpServers": [\n}')

    done = mcp("install", "cursor")

    assert done.exit_code == 1
    assert ".cursor/mcp.json: line 3: expected a value: correct the file" in done.stderr
    assert (home / ".cursor/mcp.json").read_text() == '{\n"mcpServers": [\n}'
    assert clients.load(home / "state", "cursor") is None


def test_a_server_that_is_not_ours_is_never_replaced(home: Path) -> None:
    (home / ".cursor").mkdir()
    (home / ".cursor/mcp.json").write_text('{"mcpServers": {"agentos": {"command": "other", "args": ["mcp"]}}}')

    refused, named = mcp("install", "cursor"), mcp("install", "cursor", "--name", "work")

    assert "has another server 'agentos' already: choose a name with --name, or remove that server" in refused.stderr
    servers = json.loads((home / ".cursor/mcp.json").read_text())["mcpServers"]
    assert named.exit_code == 0, named.output
    assert servers["agentos"] == {"command": "other", "args": ["mcp"]}
    assert servers["work"]["args"][1:3] == ["--client", "work"]


def test_without_a_kernel_it_says_which_one_the_client_will_miss(home: Path) -> None:
    missing, own = mcp("install", "cursor"), mcp("install", "vscode", "--standalone")
    lock = os.open(home / "state/lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    running = mcp("install", "gemini-cli")
    os.close(lock)

    assert f"agentos: the client will find no kernel at {home}/agentos" in missing.stderr
    assert "start one with `agentos run`" in missing.stderr
    assert (own.exit_code, own.stderr) == (running.exit_code, running.stderr) == (0, "")


def test_a_file_that_cannot_be_written_leaves_no_entry(home: Path) -> None:
    (home / ".cursor").write_text("a file")

    done = mcp("install", "cursor")

    assert done.exit_code == 1
    assert f"{home}/.cursor" in done.stderr
    assert clients.load(home / "state", "cursor") is None


def test_after_revoke_the_same_client_is_installed_anew(home: Path) -> None:
    mcp("install", "cursor")

    again, revoked, anew = (
        mcp("install", "cursor"),
        mcp("revoke", "cursor"),
        mcp("install", "cursor", "--level=minimal"),
    )

    assert "there is an MCP client 'cursor' already: remove it with `agentos mcp revoke cursor`" in again.stderr
    assert revoked.output == "cursor revoked\n"
    assert anew.exit_code == 0, anew.output
    assert entry_of("cursor").level == "minimal"


def test_print_changes_nothing(home: Path) -> None:
    done = mcp("install", "gemini-cli", "--print")

    assert json.loads(done.stdout)["mcpServers"]["agentos"]["args"][:3] == ["mcp", "--client", "gemini-cli"]
    assert f"for Gemini CLI, in {home}/.gemini/settings.json:" in done.stderr
    assert list(home.iterdir()) == []


def test_a_client_on_windows_starts_the_server_in_its_distribution(home: Path) -> None:
    done = mcp("install", "vscode", "--wsl", "Ubuntu-24.04")

    server = json.loads(done.stdout)["servers"]["agentos"]
    assert (server["type"], server["command"]) == ("stdio", "wsl.exe")
    assert server["args"][:3] == ["--distribution", "Ubuntu-24.04", "--exec"]
    assert server["args"][-1] == str(home / "state")
    assert r"in %APPDATA%\Code\User\mcp.json:" in done.stderr
    assert entry_of("vscode").transport == "stdio"
    assert not find_file(CLIENTS["vscode"]).exists()


def test_a_client_elsewhere_starts_the_server_by_ssh_in_words_that_a_shell_leaves_whole(home: Path) -> None:
    place = home / "it's state"

    done = CliRunner().invoke(cli, ["mcp", "install", "claude-desktop", "--ssh", "ada@host", "--state-dir", str(place)])

    server = json.loads(done.stdout)["mcpServers"]["agentos"]
    assert (server["command"], server["args"][:2]) == ("ssh", ["-T", "ada@host"])
    assert server["args"][2].endswith(""" --state-dir '""" + str(place).replace("'", """'"'"'""") + "'")


def test_a_kernel_of_the_servers_own_has_the_projects_file(home: Path) -> None:
    without = json.loads(mcp("install", "cursor", "--print", "--standalone").stdout)
    (home / "agentos.toml").write_text("# nothing yet\n")

    with_file = json.loads(mcp("install", "cursor", "--print", "--standalone").stdout)

    assert without["mcpServers"]["agentos"]["args"][-1] == "--standalone"
    assert with_file["mcpServers"]["agentos"]["args"][-3:] == ["--standalone", "--config", str(home / "agentos.toml")]


@pytest.mark.parametrize("option", ["--ssh", "--wsl"])
def test_a_host_that_would_be_an_option_is_refused(option: str) -> None:
    done = mcp("install", "cursor", f"{option}=-oProxyCommand=x")

    assert done.exit_code == 2
    assert "expected a name, got '-oProxyCommand=x'" in done.stderr


def test_a_level_that_is_not_there_is_said_at_once(home: Path) -> None:
    (home / "agentos.toml").write_text('[permissions.careful]\nlevel = "standard"\n')

    unknown, known = mcp("install", "cursor", "--level", "standart"), mcp("install", "cursor", "--level", "careful")

    assert "no level or permission set is called 'standart', did you mean" in unknown.stderr
    assert known.exit_code == 0, known.output
    assert entry_of("cursor").level == "careful"


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_set_of_the_clients_own_is_checked_and_kept(home: Path, suffix: str) -> None:
    given = {"level": "standard", "deny": {"commands": ["git push *"]}}
    text = json.dumps(given) if suffix == "json" else 'level = "standard"\ndeny.commands = ["git push *"]\n'
    (home / f"set.{suffix}").write_text(text)

    done = mcp("install", "cursor", "--permissions", f"set.{suffix}")

    assert done.exit_code == 0, done.output
    assert "at most own set" in done.output
    assert entry_of("cursor").permissions == given


def test_a_wrong_set_is_said_with_its_path(home: Path) -> None:
    (home / "set.toml").write_text('allow.commands = "git"\nalow.read = []\n')

    done = mcp("install", "cursor", "--permissions", "set.toml")

    assert done.exit_code == 1
    assert "allow.commands: expected" in done.stderr
    assert "set.toml: alow: " in done.stderr


def test_elicitation_decides_only_where_the_operator_says_so() -> None:
    mcp("install", "cursor", "--elicitation", "decides")

    assert entry_of("cursor").elicitation == "decides"


def test_a_token_is_shown_once_and_finds_its_client(home: Path) -> None:
    made = mcp("token", "n8n", "--level", "minimal")

    listed = mcp("clients", "--json")
    found = clients.find_by_token(home / "state", made.stdout.strip())
    assert found == entry_of("n8n")
    assert "isn't shown again" in made.stderr
    secret = made.stdout.strip().rpartition(".")[2]
    assert secret not in listed.output
    [shown] = json.loads(listed.stdout)
    assert (shown["guest"], shown["transport"], shown["level"], shown["last_used"]) == (
        "mcp:n8n",
        "http",
        "minimal",
        None,
    )


def test_a_token_has_no_option_by_which_elicitation_would_decide() -> None:
    done = mcp("token", "n8n", "--elicitation", "decides")

    assert done.exit_code == 2
    assert "No such option" in done.stderr


def test_the_list_of_clients_is_a_table() -> None:
    none = mcp("clients")
    mcp("install", "cursor", "--elicitation", "decides")
    mcp("token", "n8n")

    table = mcp("clients").output.splitlines()

    assert none.output.startswith("no MCP client: make one with `agentos mcp install claude-desktop`")
    assert [line.split() for line in table] == [
        ["NAME", "TRANSPORT", "LEVEL", "ELICITATION", "LAST", "USED"],
        ["cursor", "stdio", "standard", "decides", "never"],
        ["n8n", "http", "standard", "never", "never"],
    ]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("revoke", "nobody"), "no MCP client is called 'nobody'"),
        (("revoke", "../x"), "name: expected 1 to 32 lower-case letters"),
        (("token", "N8N"), "name: expected 1 to 32 lower-case letters"),
        (("install", "cursor", "--wsl", "a", "--ssh", "b"), "--wsl and --ssh are two ways"),
        (("install", "zed"), "'zed' is not one of"),
    ],
)
def test_a_mistake_names_what_is_wrong(words: tuple[str, ...], why: str) -> None:
    done = mcp(*words)

    assert done.exit_code in (1, 2)
    assert why in done.stderr


def test_the_files_and_tables_are_those_of_the_clients_documentation() -> None:
    """Anthropic, Cursor, Microsoft and Google say so in November 2026."""
    known: dict[str, Any] = {name: (client.linux, client.table) for name, client in CLIENTS.items()}

    assert known == {
        "claude-desktop": (DESKTOP, "mcpServers"),
        "claude-code": (".claude.json", "mcpServers"),
        "cursor": (".cursor/mcp.json", "mcpServers"),
        "vscode": (".config/Code/User/mcp.json", "servers"),
        "gemini-cli": (".gemini/settings.json", "mcpServers"),
    }


def test_the_sdk_of_mcp_is_an_extra() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]

    assert not any(one.startswith("mcp") for one in project["dependencies"])
    assert project["optional-dependencies"]["mcp"] == ["mcp>=2.3"]
