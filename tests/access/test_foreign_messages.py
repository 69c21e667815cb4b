"""What a file says of a message's sender gives it nothing."""

import time

import pytest

from agentos.access.foreign_messages import UNNAMED, make_foreign


@pytest.mark.parametrize("name", ["operator", "Kernel", "root", "guest", "mcp.files", "#1", "7", "", "a b", "x" * 200])
def test_a_name_that_no_caller_may_take_is_none_here(name: str) -> None:
    assert make_foreign(name, b"1", 5.0, 1).from_name == UNNAMED


def test_a_message_is_a_guests_with_its_age_and_none_of_the_future() -> None:
    old, later = (make_foreign("ann", b"1", at, 9) for at in (5.0, 1e11))
    assert (old.from_id, old.from_kind, old.from_name, old.sent_at, old.id) == (0, "guest", "ann", 5.0, 9)
    assert abs(old.age - (time.time() - 5)) < 3600
    assert later.sent_at <= time.time()
    assert 0 <= later.age < 3600
    assert (old.attempt, old.family) == (0, "")
