"""Names: which are reserved, and that the comparison doesn't rely on names being ASCII."""

import pytest

from agentos.agents.spec import RESERVED, check_guest_name, check_name, is_reserved
from agentos_sdk.errors import AlreadyExists, BadRequest
from tests.support.runs.rows import each_row


@each_row("name", RESERVED)
def test_a_reserved_name_is_reserved_in_any_case_and_width(name: str) -> None:
    wide = "".join(chr(ord(letter) + 0xFEE0) for letter in name)  # fullwidth forms, U+FF41 and on

    assert all(is_reserved(one) for one in (name, name.upper(), name.title(), wide, wide.upper()))
    with pytest.raises(AlreadyExists, match="as: expected a name other than root, spawned, kernel, operator"):
        check_name(name.upper(), "as")
    with pytest.raises(BadRequest, match="as: expected a name of 1 to 64 letters"):
        check_name(wide, "as")


@pytest.mark.parametrize("name", ["guest", "Guest", "mcp:guest"])
def test_a_guest_may_be_called_guest_and_no_agent(name: str) -> None:
    check_guest_name(name)

    with pytest.raises((AlreadyExists, BadRequest)):
        check_name(name, "name")


@pytest.mark.parametrize("name", ["operators", "my-kernel", "rooted", "operator-2"])
def test_a_name_with_more_in_it_is_free(name: str) -> None:
    check_name(name, "name")
