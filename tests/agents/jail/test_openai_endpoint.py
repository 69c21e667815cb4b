"""Where programs find the model's endpoint."""

import socket

import pytest

from agentos.agents.jail.openai_endpoint import PORT, Endpoint, endpoint
from agentos.agents.spec import AgentSpec

JAILED = AgentSpec("jailed", command=["/bin/true"])
CONNECTED = AgentSpec("connected", command=["/bin/true"], network="host")
BARE = AgentSpec("bare", command=["/bin/true"], isolation="none")


def test_a_jail_has_one_of_its_own_without_a_secret() -> None:
    found = endpoint(JAILED)

    assert found == Endpoint(PORT)
    assert found.environment == {
        "OPENAI_BASE_URL": "http://127.0.0.1/v1",
        "OPENAI_API_KEY": "agentos",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1",
        "ANTHROPIC_API_KEY": "agentos",
        "GOOGLE_GEMINI_BASE_URL": "http://127.0.0.1",
        "GEMINI_API_KEY": "agentos",
    }


@pytest.mark.parametrize("spec", [CONNECTED, BARE])
def test_on_the_hosts_network_it_has_a_port_and_a_key_of_its_own(spec: AgentSpec) -> None:
    one, other = endpoint(spec), endpoint(spec)

    assert one.environment["OPENAI_BASE_URL"] == f"http://127.0.0.1:{one.port}/v1"
    assert one.environment["ANTHROPIC_BASE_URL"] == f"http://127.0.0.1:{one.port}"
    assert one.environment["GOOGLE_GEMINI_BASE_URL"] == f"http://127.0.0.1:{one.port}"
    assert {value for name, value in one.environment.items() if name.endswith("_API_KEY")} == {one.key}
    assert (one.port != other.port, one.key != other.key) == (True, True)
    assert str(one.key) not in repr(one)
    for each in (one, other):
        assert each.listener is not None
        each.listener.close()


def test_no_other_machine_reaches_it_and_the_kernel_never_waits_for_it() -> None:
    found = endpoint(BARE)
    assert found.listener is not None

    assert found.listener.getsockname()[0] == "127.0.0.1"
    assert not found.listener.getblocking()
    found.listener.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", found.port))
