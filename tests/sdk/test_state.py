"""The state as a mapping, by both clients."""

import pytest

from agentos_sdk import AgentOSClient, connect
from agentos_sdk.errors import PermissionDenied
from tests.support.kernel import Kernel


def test_the_state_is_a_mapping_for_each_scope(kernel: Kernel) -> None:
    with kernel.client() as client:
        state = client.state
        state["plan"] = {"step": 1}
        state.agent["plan"] = "mine"
        state.session["now"] = None

        assert dict(state) == {"plan": {"step": 1}}
        assert dict(state.agent) == {"plan": "mine"}
        assert (state.session.get("now", "missing"), state.session.get("then", "missing")) == (None, "missing")
        assert "plan" in state
        assert "now" not in state
        assert state.pop("plan") == {"step": 1}
        with pytest.raises(KeyError):
            state["plan"]
        with pytest.raises(KeyError):
            del state["plan"]
        del state.agent["plan"]
        assert len(state.agent) == 0


def test_all_keys_are_iterated_over(kernel: Kernel) -> None:
    keys = [f"many.{number:04}" for number in range(1001)]
    with kernel.client() as client:
        for key in keys:
            client.state.session[key] = 1

        assert list(client.state.session) == keys


def test_a_refused_access_raises_the_calls_error(kernel: Kernel) -> None:
    with AgentOSClient(kernel.socket, level="sandboxed") as guest:
        guest.state.agent["own"] = 1
        assert guest.state.agent["own"] == 1
        with pytest.raises(PermissionDenied):
            guest.state["plan"] = 1


async def test_the_trio_client_awaits_it(kernel: Kernel) -> None:
    async with connect(kernel.socket) as client:
        state = client.state.session
        assert await state.set("a", [1]) == 1
        assert await state.set("b", None, ttl=60) == 2

        assert (await state.get("a"), await state.get("b", "missing"), await state.get("c", "missing")) == (
            *([1], None),
            "missing",
        )
        assert [key async for key in state] == ["a", "b"]
        assert (await state.delete("a"), await state.delete("a")) == (True, False)
        assert await client.state.agent.get("b") is None
