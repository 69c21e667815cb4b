"""A litellm proxy as provider keeps the contract too: what is scripted is the vendor behind it."""

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from attrs import frozen

from agentos.llm.providers.choose import ProviderChoice, connect
from agentos.llm.providers.provider import Provider, RateLimited
from agentos.llm.settings import LLMSettings
from tests.contracts.test_provider import *  # noqa: F403
from tests.contracts.test_provider import QUESTION, deaf
from tests.llm.vendors.script import Refuses, Script
from tests.llm.vendors.server import Vendor
from tests.support.kernel import until
from tests.support.ports import free_port
from tests.support.servers.vendor import vendor

PLACE = Path(sys.prefix, "litellm-proxy")
KEY = "sk-5c1e7b1f9a6d4c0f8e2b"
START_SECONDS = 300


@frozen
class Proxy:
    url: str
    vendor: Vendor


def is_up(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(url) as answer:
        return bool(answer.status == 200)
    return False


@pytest.fixture(scope="module")
def proxy(framework: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    if not (PLACE / "ready").exists():
        pytest.skip(f"litellm isn't in {PLACE}, run `make test-frameworks`: its proxy is NOT tested as provider")
    home, port = tmp_path_factory.mktemp("litellm"), free_port()
    with vendor() as met, (home / "output").open("wb") as output:
        to = {"model": "openai/a-model", "api_base": met.base_url, "api_key": met.key, "max_retries": 0}
        config = {
            "model_list": [{"model_name": "a-model", "litellm_params": to}],
            "litellm_settings": {"num_retries": 0, "drop_params": True, "telemetry": False},
            "router_settings": {"num_retries": 0, "disable_cooldowns": True},
            "general_settings": {"master_key": KEY},
        }
        (home / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
        words = [f"{PLACE}/bin/litellm", "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        process = subprocess.Popen(words, cwd=home, env=env, stdout=output, stderr=output)
        try:
            url = f"http://127.0.0.1:{port}"
            until(
                lambda: process.poll() is not None or is_up(f"{url}/health/liveliness"),
                "the proxy answers",
                seconds=START_SECONDS,
                show=(home / "output").read_text,
            )
            assert process.poll() is None, (home / "output").read_text()
            yield Proxy(f"{url}/v1", met)
        finally:
            process.terminate()
            process.wait()


class ProxyWorld:
    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._met: list[Provider] = []

    async def meet(self, *scripts: Script) -> Provider:
        self._proxy.vendor.will(*scripts)
        choice = ProviderChoice("openai", "a-model", self._proxy.url, KEY, "OPENAI_API_KEY")
        self._met.append(await connect(choice, LLMSettings()))
        return self._met[-1]

    async def aclose(self) -> None:
        for provider in self._met:
            await provider.aclose()
        self._proxy.vendor.scripts.clear()


@pytest.fixture  # type: ignore[no-redef]
async def world(proxy: Proxy) -> AsyncIterator[ProxyWorld]:
    made = ProxyWorld(proxy)
    yield made
    await made.aclose()


async def test_a_provider_that_is_asked_too_much_says_when_to_come_back(  # type: ignore[no-redef]
    world: ProxyWorld,
) -> None:
    """Not behind this proxy, which leaves that out: the kernel waits as long as it does where it isn't told."""
    provider = await world.meet(Refuses(429, after=2.5))

    with pytest.raises(RateLimited) as caught:
        await provider.answer(QUESTION, deaf)

    assert caught.value.after is None
