"""Entries of MCP clients: made by the operator, kept privately, found by name or token, revoked."""

import os
import time
from pathlib import Path

import pytest

from agentos.private_files import UnsafeFile
from agentos.userland.mcp import clients
from agentos.userland.mcp.clients import ClientEntry, ClientError


def stdio(name: str = "claude-desktop", **more: object) -> ClientEntry:
    return ClientEntry(name, "stdio", 1000.0, **({"level": "standard"} | more))  # type: ignore[arg-type]


def http(state_dir: Path, name: str = "n8n") -> str:
    """Make an entry; its token."""
    token, kept = clients.make_token(name)
    clients.create(state_dir, ClientEntry(name, "http", 1000.0, level="standard", token_sha256=kept))
    return token


def test_an_entry_is_found_by_its_name_as_it_was_made(tmp_path: Path) -> None:
    entry = stdio(
        level=None, permissions={"level": "standard", "deny": {"commands": ["git push *"]}}, elicitation="decides"
    )

    clients.create(tmp_path, entry)

    assert clients.load(tmp_path, "claude-desktop") == entry
    assert clients.load(tmp_path, "cursor") is None


def test_only_the_kernels_user_can_read_an_entry(tmp_path: Path) -> None:
    clients.create(tmp_path, stdio())

    file = tmp_path / "mcp" / "clients" / "claude-desktop.json"
    assert [file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777] == [0o600, 0o700]


def test_an_entry_is_never_replaced(tmp_path: Path) -> None:
    clients.create(tmp_path, stdio())

    with pytest.raises(ClientError, match=r"there is an MCP client 'claude-desktop' already: .* revoke claude-desktop"):
        clients.create(tmp_path, stdio(level="unrestricted"))

    assert clients.load(tmp_path, "claude-desktop") == stdio()


@pytest.mark.parametrize("name", ["", "../up", "a/b", "Claude", "-x", ".hidden", "x" * 33, "a b", "a\n", "é"])
def test_a_name_that_could_be_another_file_is_refused(tmp_path: Path, name: str) -> None:
    for attempt in (
        lambda: stdio(name),
        lambda: clients.load(tmp_path, name),
        lambda: clients.revoke(tmp_path, name),
    ):
        with pytest.raises(ClientError, match="name: expected 1 to 32 lower-case letters"):
            attempt()


def test_a_client_over_http_is_found_by_its_token_of_which_only_a_hash_is_kept(tmp_path: Path) -> None:
    token = http(tmp_path)

    found = clients.find_by_token(tmp_path, token)

    assert found is not None
    assert found.guest == "mcp:n8n"
    assert token.rpartition(".")[2] not in (tmp_path / "mcp/clients/n8n.json").read_text()


def test_no_other_token_finds_a_client(tmp_path: Path) -> None:
    token, other = http(tmp_path), http(tmp_path, "other")
    clients.create(tmp_path, stdio())
    secret = other.rpartition(".")[2]
    wrong = [token[:-1], token + "x", f"agentos-mcp.n8n.{secret}", "agentos-mcp.n8n", "agentos-mcp.n8n.", "", "n8n"]
    wrong += ["agentos-mcp.claude-desktop.", "agentos-mcp.../../x.y", token.upper(), "agentos-mcp.nobody." + secret]

    assert [clients.find_by_token(tmp_path, one) for one in wrong] == [None] * len(wrong)


def test_elicitation_never_decides_over_http() -> None:
    with pytest.raises(ClientError, match="elicitation decides nothing over HTTP"):
        ClientEntry("n8n", "http", 1.0, level="standard", elicitation="decides", token_sha256="00")


def test_a_revoked_entry_is_gone_and_no_longer_current(tmp_path: Path) -> None:
    token = http(tmp_path)
    entry = clients.load(tmp_path, "n8n")
    assert entry is not None
    assert clients.is_current(tmp_path, entry)

    assert clients.revoke(tmp_path, "n8n")

    assert not clients.is_current(tmp_path, entry)
    assert clients.find_by_token(tmp_path, token) is None
    assert not clients.revoke(tmp_path, "n8n")


def test_an_entry_made_anew_under_its_name_is_another(tmp_path: Path) -> None:
    clients.create(tmp_path, stdio())
    clients.revoke(tmp_path, "claude-desktop")
    clients.create(tmp_path, stdio(level="minimal"))

    assert not clients.is_current(tmp_path, stdio())


def test_the_list_says_when_each_was_used_last(tmp_path: Path) -> None:
    clients.create(tmp_path, stdio())
    http(tmp_path)
    before = time.time() - 1

    clients.record_use(tmp_path, "n8n")

    (_, never), (_, used) = clients.list_entries(tmp_path)
    assert never is None
    assert used is not None
    assert before < used < time.time() + 1


def test_a_damaged_entry_says_how_to_be_rid_of_it(tmp_path: Path) -> None:
    clients.create(tmp_path, stdio())
    (tmp_path / "mcp/clients/claude-desktop.json").write_text('{"name": "claude-desktop", "level": 7}')

    with pytest.raises(ClientError, match=r"is damaged .*: remove it with `agentos mcp revoke claude-desktop`"):
        clients.load(tmp_path, "claude-desktop")

    assert clients.revoke(tmp_path, "claude-desktop")


def test_an_entry_that_another_user_may_have_changed_is_refused(tmp_path: Path) -> None:
    clients.create(tmp_path, stdio())
    os.chmod(tmp_path / "mcp/clients", 0o777)

    with pytest.raises(UnsafeFile, match="lets other users write to it"):
        clients.load(tmp_path, "claude-desktop")


def test_to_look_for_entries_makes_nothing(tmp_path: Path) -> None:
    assert clients.list_entries(tmp_path / "none") == []
    assert clients.load(tmp_path / "none", "x") is None
    assert list(tmp_path.iterdir()) == []
