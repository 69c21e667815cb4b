"""The private keys that a fork begins with are those that the recorded life had at its call."""

from typing import Any

from agentos.recordings.reader import RecordedCall
from agentos.recordings.replay.keys import build_keys
from agentos.recordings.replay.switch import Switch
from agentos.services.state.copies import KeptKey

START = [KeptKey("begin", b'"then"'), KeptKey("short", b"1", 1004.0)]


def call(number: int, name: str, reply: dict[str, Any], at: float = 1000.0, **request: Any) -> RecordedCall:
    return RecordedCall(number, number + 1, "coder/1", name, at, 0.0, request, {"success": True, **reply})


CALLS = [
    call(1, "STORE", {}, 1001.0, key="own", value=[1], scope="agent"),
    call(3, "STORE", {}, 1002.0, key="shared", value=2),
    call(5, "FETCH", {"exists": True, "value": "read", "scope": "agent"}, 1003.0, key="earlier"),
    call(7, "FETCH", {"exists": True, "value": "old", "scope": "global"}, 1003.0, key="shared"),
    call(9, "STORE", {}, 1004.0, key="timed", value=3, scope="agent", ttl=10),
    call(11, "DELETE", {"deleted": True, "scope": "agent"}, 1005.0, key="own"),
    call(13, "STORE", {}, 1006.0, key="own", value="last", scope="agent"),
    call(15, "STORE", {"success": False}, 1007.0, key="refused", value=4, scope="agent"),
    call(17, "FETCH", {"exists": True, "value": "theirs", "scope": "agent"}, 1008.0, key="other", agent="boss"),
    call(19, "FETCH", {"exists": True, "value": "last", "scope": "agent", "expires_in": 2}, 1008.0, key="own"),
]


def keys_at(until: int | None) -> dict[str, tuple[bytes, float | None]]:
    return {one.key: (one.value, one.expires) for one in build_keys(START, CALLS, Switch(until, True), 5000.0)}


def test_keys_are_as_they_were_at_each_call() -> None:
    begin, earlier = (b'"then"', None), (b'"read"', None)
    assert keys_at(1) == {"begin": begin, "short": (b"1", 5003.0)}
    assert keys_at(3) == {"begin": begin, "short": (b"1", 5003.0), "own": (b"[1]", None)}
    assert keys_at(9) == {"begin": begin, "short": (b"1", 5001.0), "own": (b"[1]", None), "earlier": earlier}
    assert keys_at(13) == {"begin": begin, "earlier": earlier, "timed": (b"3", 5009.0)}
    assert keys_at(None) == {
        "begin": begin,
        "earlier": earlier,
        "timed": (b"3", 5006.0),
        "own": (b'"last"', None),
    }
