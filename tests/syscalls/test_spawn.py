"""What an agent or a guest may not ask of SPAWN, whatever its permissions are."""

from typing import Any

import pytest

from agentos.syscalls.agents.spawn import check_guest_options
from agentos_sdk.calls.agents import Spawn
from agentos_sdk.errors import PermissionDenied
from tests.support.runs.rows import each_row


@each_row(
    ("option", "told"),
    [
        ({"isolation": "none"}, "isolation: "),
        ({"sandboxed": False}, "isolation: "),
        ({"network": True}, "network: "),
        ({"network": "host"}, "network: "),
        ({"code": "/srv"}, "code: "),
        ({"python": "/usr/bin/python3"}, "python: "),
        ({"image": "debian"}, "image: "),
        ({"workspace": "kept"}, "workspace: "),
        ({"workspace": "/srv"}, "workspace: "),
    ],
)
def test_what_reaches_the_host_is_the_operators_alone_to_give(option: dict[str, Any], told: str) -> None:
    with pytest.raises(PermissionDenied, match=f"^{told}.*operator"):
        check_guest_options(Spawn(name="w", **option))


@each_row("option", [{}, {"isolation": "strict"}, {"sandboxed": True}, {"network": False}, {"workspace": "tmp"}])
def test_what_stays_in_the_jail_is_not(option: dict[str, Any]) -> None:
    check_guest_options(Spawn(name="w", **option))
