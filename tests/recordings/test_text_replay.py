"""The text of a recording done again: what is compared, what is skipped, and what text is refused."""

import json
from typing import Any

import pytest
import trio

from agentos.recordings.replay.progress import Progress
from agentos.recordings.replay.text import MAX_ENTRIES, TextReplay, read_entries
from agentos_sdk.errors import BadRequest

Json = dict[str, Any]


def entry(call: str, request: Json, agent: int = 7, success: bool = True, **reply: Any) -> Json:
    return {
        "id": 1,
        "opcode_name": call,
        "agent_id": agent,
        "request": request,
        "response": {"success": success, **reply},
    }


def stored(key: str, value: object, **more: object) -> Json:
    return entry("STORE", {"key": key, "value": value, **more}, key=key, version=3)


def fetched(key: str, value: object, agent: int = 7, there: str = "global", **request: object) -> Json:
    exists = value is not None
    reply: Json = {"exists": exists, "value": value, "scope": there if exists else None, "version": 3}
    return entry("FETCH", {"key": key, **request}, agent, **reply)


def replay(*entries: Json) -> Progress:
    made = TextReplay(read_entries(json.dumps(entries), "recording"))
    trio.run(made.run)
    return made.progress


def test_state_is_done_and_compared_and_all_else_is_skipped() -> None:
    progress = replay(
        entry("THINK", {"prompt": "x"}, content="y"),
        stored("a", {"n": 1}),
        fetched("a", {"n": 1}),
        entry("KEYS", {"prefix": ""}, keys=["a", "b"], count=2),
        entry("DELETE", {"key": "a"}, deleted=True, scope="global"),
        fetched("a", None),
        entry("DELETE", {"key": "older than the recording"}, deleted=True, scope="global"),
        entry("STORE", {"key": "a", "value": 1, "if_version": 9}, success=False, code="conflict"),
    )

    assert (progress.verdict, progress.replayed, progress.skipped) == ("identical", 5, 3)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ((stored("a", 1), fetched("a", 2)), "call 2, FETCH\nvalue: recorded '2', now '1'"),
        ((stored("a", 1), fetched("a", None)), "call 2, FETCH\nexists: recorded 'false', now 'true'"),
        (
            (stored("a", 1), entry("KEYS", {"prefix": "a"}, keys=[], count=0)),
            "call 2, KEYS\nkeys: recorded '[]', now '[\\n \"a\"\\n]'",
        ),
        (
            (stored("a", 1), entry("DELETE", {"key": "a"}, deleted=False)),
            "call 2, DELETE\ndeleted: recorded 'false', now 'true'",
        ),
    ],
)
def test_it_ends_at_the_first_reply_that_differs(entries: tuple[Json, ...], said: str) -> None:
    progress = replay(*entries, stored("later", 1))

    assert (progress.verdict, progress.replayed) == ("diverged", 2)
    assert progress.divergence is not None
    assert progress.divergence.startswith(said.partition(": recorded '[]'")[0])


def test_private_keys_of_two_callers_are_two_keys() -> None:
    own = {"scope": "agent"}
    other = entry("STORE", {"key": "a", "value": 2, **own}, 8, key="a")

    progress = replay(stored("a", 1, **own), other, fetched("a", 1, 7, "agent"), fetched("a", 2, 8, "agent", **own))

    assert (progress.verdict, progress.replayed) == ("identical", 4)


@pytest.mark.parametrize("call", ["FETCH", "DELETE"])
def test_a_key_with_a_time_to_live_is_not_compared(call: str) -> None:
    progress = replay(stored("a", 1, ttl=1.0), entry(call, {"key": "a"}, exists=False, value=None, deleted=False))

    assert (progress.verdict, progress.replayed, progress.skipped) == ("identical", 1, 1)


@pytest.mark.parametrize("request_", [{}, {"key": 3}, {"key": "a", "scope": ["x"]}, {"key": "a", "scope": "nowhere"}])
@pytest.mark.parametrize("call", ["STORE", "FETCH", "DELETE", "KEYS"])
def test_a_request_that_no_kernel_would_take_is_never_our_own_error(call: str, request_: Json) -> None:
    assert replay(entry(call, request_, keys=3), stored("b", 1)).verdict in ("identical", "diverged")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "recording: the recording is empty: it has no calls"),
        ("{}", "recording: expected a JSON array of recorded calls, got dict"),
        ("[", "recording: "),
        ("[" * 100_000, "recording: "),
        ("[3]", "recording[0]: expected an object, got int"),
        ("[{}]", "recording[0].opcode: expected a whole number, got null"),
        ('[{"opcode": "STORE"}]', 'recording[0].opcode: expected a whole number, got "STORE"'),
        ('[{"opcode": 48, "request": []}]', "recording[0].request: expected an object, got []"),
        ('[{"opcode_name": "STORE", "agent_id": true}]', "recording[0].agent_id: expected a whole number, got true"),
        ("[" + ",".join(["{}"] * (MAX_ENTRIES + 1)) + "]", f"recording: expected at most {MAX_ENTRIES} calls"),
    ],
)
def test_text_that_is_no_recording_is_refused_by_entry_and_field(text: str, said: str) -> None:
    with pytest.raises(BadRequest) as refused:
        read_entries(text, "recording")

    assert str(refused.value).startswith(said)
    assert len(str(refused.value)) < 400
