"""REPLAY_START, REPLAY_STATUS and REPLAY_STOP with the text of a recording."""

import json
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from agentos_sdk.opcodes import Op
from tests.support.kernel import Kernel, until
from tests.support.wire import HELLO, REPLAY_START, REPLAY_STATUS, REPLAY_STOP
from tests.system.agents import up

STORED = {"request": {"key": "replayed", "value": 5}, "response": {"success": True, "key": "replayed", "version": 1}}
FETCHED = {
    "request": {"key": "replayed"},
    "response": {"success": True, "exists": True, "value": 5, "scope": "global", "version": 1},
}


def recording(*more: dict[str, Any]) -> str:
    return json.dumps([{"opcode": 0x30, "opcode_name": "STORE", **STORED}, {"opcode_name": "FETCH", **FETCHED}, *more])


def wait_end(client: AgentOSClient) -> dict[str, Any]:
    until(lambda: client.replay_status()["state"] != "RUNNING", "the replay has ended")
    return dict(client.replay_status())


@pytest.mark.parametrize("field", ["recording", "recording_data"])
def test_a_text_is_replayed_in_a_scope_of_its_own(kernel: Kernel, client: AgentOSClient, field: str) -> None:
    begun = up(
        client.request(Op.REPLAY_START, {field: recording({"opcode_name": "SEND", "response": {"success": True}})})
    )
    done = wait_end(client)

    assert begun["total_entries"] == 3
    assert (done["state"], done["verdict"], done["progress"]) == ("COMPLETED", "identical", 1.0)
    assert (done["entries_replayed"], done["entries_skipped"], done["current_entry"]) == (2, 1, 3)
    assert client.fetch("replayed")["exists"] is False
    assert client.replay_stop()["state"] == "IDLE"
    assert client.replay_status()["state"] == "IDLE"


def test_a_difference_is_named_and_wrong_fields_are_refused(kernel: Kernel, client: AgentOSClient) -> None:
    different = json.loads(recording())
    different[1]["response"]["value"] = 6
    up(client.replay_start(json.dumps(different)))
    done = wait_end(client)
    refused = [client.replay_start(text, recording_data=other) for text, other in ((None, None), ("[]", "[]"))]

    assert (done["verdict"], done["divergence"]) == ("diverged", "call 2, FETCH\nvalue: recorded '6', now '5'")
    assert "empty" in client.replay_start("[]")["error"]
    assert {reply["code"] for reply in refused} == {"bad_request"}


def test_only_the_operator_replays_whatever_is_granted(kernel: Kernel) -> None:
    granted = {"level": "sandboxed", "allow": {"calls": ["REPLAY_START", "REPLAY_STATUS", "REPLAY_STOP"]}}
    with kernel.connect() as guest:
        assert guest.call(HELLO, {"protocol": 1, "as": "replayer", "permissions": granted})["success"]
        replies = [guest.call(REPLAY_START, {"recording": recording()})]
        replies += [guest.call(op, {}) for op in (REPLAY_STATUS, REPLAY_STOP)]

    assert [reply["code"] for reply in replies] == ["permission_denied"] * 3
