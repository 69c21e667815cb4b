from agentos.kernel.caller import Allowance, Caller
from agentos.kernel.table import Table
from tests.support.rights import Grants, Notebook


def caller(number: int) -> Caller:
    return Caller(number, "agent", f"a{number}", Table(()), Grants(), Notebook())


def test_ended_callers_share_what_counts_calls_in_flight() -> None:
    one, other = caller(1), caller(2)
    one.shrink()
    other.shrink()

    assert one.allowance is other.allowance
    assert one.activity is other.activity
    assert one.allowance.unused


def test_a_caller_with_a_call_in_flight_keeps_what_counts_it() -> None:
    one, other = caller(1), caller(2)
    one.allowance.begin(5)
    one.shrink()
    other.shrink()
    one.allowance.end(5)

    assert one.allowance is not other.allowance
    assert (one.allowance.calls, one.allowance.requests) == (0, 0)


def test_an_open_connection_or_an_unread_reply_is_a_use() -> None:
    used = [Allowance() for _ in range(4)]
    used[0].add_connections(1)
    used[1].begin(0)
    used[2].reserve(1)
    used[3].hold_reply(1)

    assert not any(each.unused for each in used)
