"""Traces of a running kernel, as an OpenTelemetry collector gets them."""

import json
from collections.abc import Iterator

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from agentos import __version__
from tests.conftest import OwnKernel
from tests.support.kernel import until
from tests.support.servers.otlp import Receiver, otlp_receiver, read
from tests.support.wire import KILL, LIST, NOOP, READ, SPAWN, THINK
from tests.system.agents import in_state, up
from tests.system.lives.test_containers import child

MODEL = '[llm]\nprovider = "offline"\n[llm.prices]\noffline = { input = 1000, output = 1000 }\n'
SECRET = "a-value-of-a-secret"
SECRETS = '[[http.secrets]]\nname = "s"\nhost = "example.com"\nheader = "X"\nvalue_from = "env:SECRET"\n'


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with otlp_receiver() as started:
        yield started


def traced(receiver: Receiver, more: str = "") -> str:
    return f'[otel]\nendpoint = "{receiver.endpoint}"\n{more}{MODEL}'


def test_a_call_is_a_span_below_its_agents_life_and_a_question_has_the_attributes_of_the_conventions(
    own_kernel: OwnKernel, receiver: Receiver
) -> None:
    kernel = own_kernel(traced(receiver) + child("worker"))
    with kernel.client() as client:
        number = next(one["id"] for one in client.list_agents() if one["name"] == "worker")
        with kernel.connect_as(number) as wire:
            assert wire.ask(NOOP, b"x").body == b"x"
            refused = wire.call(READ, {"path": "/etc/shadow"})
            assert wire.call(SPAWN, {"name": "helper", "command": ["sleep", "1000"]})["success"]
            helper = next(one["id"] for one in client.list_agents() if one["name"] == "helper")
            with kernel.connect_as(helper) as below:
                below.call(LIST)
            assert wire.call(KILL, {"id": helper})["killed"]
        client.kill(agent_id=number, grace=0)

        life = receiver.wait("invoke_agent worker")
        noop, failed = receiver.wait("NOOP", agentos__caller__kind="agent"), receiver.wait("READ")
        helpers_life = receiver.wait("invoke_agent helper")
        listed = receiver.wait("LIST", gen_ai__agent__name="helper")
        spawned = receiver.wait("SPAWN")
        by_operator = receiver.wait("LIST", agentos__caller__kind="operator")

    assert receiver.resource["service.name"] == "agentos"
    assert receiver.resource["service.version"] == __version__
    assert life.parent_span_id == by_operator.parent_span_id == b""
    assert noop.parent_span_id == failed.parent_span_id == spawned.parent_span_id == life.span_id
    assert helpers_life.parent_span_id == life.span_id
    assert listed.parent_span_id == helpers_life.span_id
    assert {one.trace_id for one in (noop, failed, helpers_life, listed)} == {life.trace_id}
    assert by_operator.trace_id != life.trace_id
    assert life.start_time_unix_nano < noop.start_time_unix_nano <= noop.end_time_unix_nano < life.end_time_unix_nano
    attributes = read(failed.attributes)
    assert attributes["agentos.code"] == attributes["error.type"] == refused["code"]
    assert attributes["gen_ai.agent.name"] == "worker"
    assert attributes["gen_ai.agent.id"] == str(number)
    assert failed.status.code == Status.STATUS_CODE_ERROR
    assert read(noop.attributes)["agentos.code"] == "ok"
    assert noop.status.code == Status.STATUS_CODE_UNSET
    assert read(life.attributes)["gen_ai.operation.name"] == "invoke_agent"
    assert "/etc/shadow" not in str(receiver.spans)

    with kernel.connect() as wire:
        reply = wire.call(THINK, {"prompt": "the question", "max_tokens": 100, "temperature": 0.5})
        assert reply["success"], reply

    span = receiver.wait("chat offline")
    found = read(span.attributes)
    assert span.kind == Span.SPAN_KIND_CLIENT
    assert {key: found[key] for key in found if key.startswith("gen_ai.")} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "offline",
        "gen_ai.request.model": "offline",
        "gen_ai.request.max_tokens": 100,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.stream": False,
        "gen_ai.response.model": reply["model"],
        "gen_ai.response.finish_reasons": [reply["finish_reason"]],
        "gen_ai.usage.input_tokens": reply["usage"]["input"],
        "gen_ai.usage.output_tokens": reply["usage"]["output"] + reply["usage"]["thinking"],
        "gen_ai.usage.reasoning.output_tokens": reply["usage"]["thinking"],
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.cache_creation.input_tokens": 0,
    }
    assert found["agentos.cost"] == pytest.approx(reply["tokens"] / 1000)
    assert found["agentos.waiting_seconds"] >= 0
    assert "the question" not in str(receiver.spans)


def test_contents_are_sent_only_if_asked_for_and_without_secrets(receiver: Receiver, own_kernel: OwnKernel) -> None:
    kernel = own_kernel(traced(receiver, "contents = true\n") + SECRETS, {"SECRET": SECRET})
    with kernel.connect() as wire:
        assert wire.call(THINK, {"prompt": f"what is {SECRET}?", "system_instruction": "be brief"})["success"]
        assert wire.call(THINK, {"prompt": "x" * 8185 + SECRET})["success"]

    found = read(receiver.wait("chat offline").attributes)
    [question] = json.loads(found["gen_ai.input.messages"])
    assert question == {"role": "user", "parts": [{"type": "text", "content": "what is •••?"}]}
    assert json.loads(found["gen_ai.output.messages"])[0]["role"] == "assistant"
    assert "be brief" in found["gen_ai.system_instructions"]
    until(lambda: sum(one.name == "chat offline" for one in receiver.spans) == 2, "both questions")
    assert SECRET not in str(receiver.spans)
    assert f"x{SECRET[:7]}" not in str(receiver.spans)


def test_a_collector_that_fails_holds_up_nothing(own_kernel: OwnKernel, receiver: Receiver) -> None:
    receiver.status = 400
    kernel = own_kernel(traced(receiver))
    with kernel.connect() as wire:
        wire.ask(NOOP, b"x")
        kernel.wait_line(r"traces can't be sent to http://127.0.0.1:\d+ \(\[otel\] endpoint\)")
        receiver.status = 200
        assert wire.ask(NOOP, b"y").body == b"y"
        kernel.wait_line(r"traces are sent to http://127.0.0.1:\d+ again; \d+ spans were dropped")
    assert sum("can't be sent" in line for line in kernel.lines) == 1


def test_a_kernel_without_its_collector_serves_and_stops(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(f'[otel]\nendpoint = "http://127.0.0.1:1"\n{MODEL}')
    with kernel.client() as client:
        up(client.spawn("one", command=["sleep", "1000"]))
        client.kill("one", grace=0)
        in_state(client, "one", "exited")
