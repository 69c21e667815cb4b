"""Kernels with several providers: real vendors on loopback that fail, are silent or slow, and refuse keys."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from tests.llm.vendors.script import Refuses, Says, Script, Silent, Text
from tests.llm.vendors.server import Vendor
from tests.support.kernel import Kernel, running, until
from tests.support.servers.vendor import vendor
from tests.support.wire import THINK

FALLBACK_AFTER = 1.0  # seconds
FIRST = ("down", "silent", "fine", "unsure")  # models of the first vendor


@frozen
class House:
    kernel: Kernel
    first: Vendor
    second: Vendor

    def ask(self, model: str, agent: int | None = None, **more: object) -> dict[str, Any]:
        with self.kernel.connect() if agent is None else self.kernel.connect_as(agent) as wire:
            reply: dict[str, Any] = wire.call(THINK, {"prompt": "hello", "model": model, **more})
        return reply


@pytest.fixture(scope="module")
def house(kernels: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    keys = tmp_path_factory.mktemp("keys")
    with vendor() as first, vendor() as second, socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = closed.getsockname()[1]
        closed.close()
        scripts: dict[str, Script] = {
            "down": Refuses(503, "overloaded"),
            "silent": Silent(),
            "fine": Says([Text("from the first")]),
            "unsure": Refuses(400, "what?"),
        }
        first.models, second.models = {**scripts}, {"spare": Says([Text("from the second")])}
        for name, key in (("right", first.key), ("wrong", "another-key")):
            write_key(keys / name, key)
        toml = f"""
            [llm]
            model = "best"
            fallback_after = "{FALLBACK_AFTER}s"
            [llm.providers.first]
            type = "openai"
            base_url = "{first.base_url}"
            keys = ["file:{keys}/wrong", "file:{keys}/right"]
            models = {list(FIRST)}
            [llm.providers.second]
            type = "openai"
            base_url = "{second.base_url}"
            keys = ["file:{keys}/right"]
            models = ["spare"]
            [llm.providers.gone]
            type = "openai"
            base_url = "http://127.0.0.1:{nobody}/v1"
            keys = ["file:{keys}/right"]
            models = ["gone"]
            [llm.aliases]
            best = ["down", "spare"]
            hanging = ["silent", "spare"]
            vanished = ["gone", "spare"]
            picky = ["unsure", "spare"]
            "gpt-*" = ["fine", "spare"]
        """
        with running(toml) as kernel:
            yield House(kernel, first, second)


def write_key(path: Path, key: str) -> None:
    path.write_text(key)
    path.chmod(0o600)


@pytest.mark.parametrize("alias", ["best", "hanging", "vanished"])
def test_an_outage_of_the_first_model_costs_little(house: House, alias: str) -> None:
    reply = house.ask(alias)

    assert (reply["content"], reply["requested_model"]) == ("from the second", alias)
    [passed] = reply["fallbacks"]
    assert passed["reason"]


def test_a_bad_request_goes_to_no_other_model(house: House) -> None:
    before = len(house.second.exchanges)

    assert house.ask("picky")["code"] == "bad_request"
    assert len(house.second.exchanges) == before


def test_a_model_without_a_provider_is_not_found(house: House) -> None:
    reply = house.ask("nobody-has-it")

    assert reply["code"] == "not_found"
    assert "no provider has 'nobody-has-it'" in reply["error"]


def test_a_refused_key_is_left_to_the_other_and_shown_nowhere(house: House) -> None:
    replies = [house.ask("gpt-4o") for _ in range(3)]

    assert [reply["content"] for reply in replies] == ["from the first"] * 3
    assert all((reply["requested_model"], reply["fallbacks"]) == ("gpt-4o", []) for reply in replies)
    assert "another-key" not in house.kernel.said
    assert house.first.key not in house.kernel.said


def test_rules_are_about_the_models_of_an_alias(house: House) -> None:
    spare = house.kernel.spawn("spare", permissions={"level": "sandboxed", "deny": {"models": ["fine"]}})
    none = house.kernel.spawn("none", permissions={"level": "sandboxed", "deny": {"models": ["fine", "spare"]}})

    reply = house.ask("gpt-4o", spare)
    assert (reply["content"], [each["model"] for each in reply["fallbacks"]]) == ("from the second", ["fine"])
    assert house.ask("fine", spare)["code"] == "permission_denied"
    assert house.ask("gpt-4o", none)["code"] == "permission_denied"


def test_all_providers_are_named(house: House) -> None:
    with house.kernel.client() as client:
        states = client.metrics()["metrics"]["llm"]["providers"]
        status = client.status()

    assert {(one["model"], one["name"]) for one in states} == {
        *((model, "first") for model in FIRST),
        ("spare", "second"),
        ("gone", "gone"),
    }
    assert (status["model"]["model"], status["model"]["name"]) == ("down", "first")


def test_the_audit_log_tells_what_became_of_an_alias(house: House) -> None:
    asker = house.kernel.spawn("asker")
    house.ask("picky", asker)
    house.ask("best", asker)

    def told() -> list[str]:
        with house.kernel.client() as client:
            return [entry["about"] for entry in client.get_audit_log(agent_id=asker)["entries"]]

    until(lambda: any("best was spare, not down: " in about for about in told()), "the entry is written")
