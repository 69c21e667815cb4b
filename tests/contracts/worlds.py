"""Worlds to try a provider in: what is on its other side, and how that is told what to answer."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import trio

from agentos.llm.providers.choose import ProviderChoice, connect
from agentos.llm.providers.offline import Offline
from agentos.llm.providers.offline_rules import CallTemplate, Failure, Rule
from agentos.llm.providers.provider import FinishReason, Provider
from agentos.llm.settings import LLMSettings, OfflineSettings, ProviderName
from agentos_sdk.encoding.codec import Seconds
from tests.llm.vendors import anthropic_wire, gemini_wire, odd_openai_wire, openai_wire
from tests.llm.vendors.script import Break, Called, Refuses, Says, Script, Silent, Text, Trouble, Until
from tests.llm.vendors.server import Vendor, serve

DEFAULT = LLMSettings()
FAILURES: dict[int, Failure] = {400: "rejected", 401: "denied", 429: "slow_down", 503: "failing"}
FINISHES: dict[str | None, FinishReason] = {"length": "length", "content_filter": "content_filter"}


class World(Protocol):
    async def meet(self, *scripts: Script) -> Provider:
        """A provider that gets these answers to its questions, in this order."""

    async def aclose(self) -> None:
        """Close those that were met."""


class OfflineWorld:
    """Nothing is on the other side: rules say what it does, each of them once."""

    async def meet(self, *scripts: Script) -> Provider:
        await trio.lowlevel.checkpoint()
        waits = any(isinstance(script, Silent) or _any(script, Until) for script in scripts)
        return Offline(OfflineSettings(base=3600 if waits else 0), [_rule(script) for script in scripts])

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def _any(script: Script, kind: type) -> bool:
    return isinstance(script, Says) and any(isinstance(step, kind) for step in script.steps)


def _rule(script: Script) -> Rule:
    match script:
        case Refuses():
            return Rule(
                fail=FAILURES[script.status], after=None if script.after is None else Seconds(script.after), times=1
            )
        case Says():
            calls = [step.call for step in script.steps if isinstance(step, Called)]
            return Rule(
                reply="".join(step.text for step in script.steps if isinstance(step, Text)).replace("\\", r"\\"),
                tool_calls=[CallTemplate(call.name, call.arguments) for call in calls],
                finish_reason=FINISHES.get(script.finish),
                fail="failing" if _any(script, Break) else None,
                times=1,
            )
    return Rule(reply="-", times=1)


class VendorWorld:
    """An SDK's other side is a server on loopback."""

    def __init__(self, name: ProviderName, vendor: Vendor) -> None:
        self.name = name
        self.vendor = vendor
        self._met: list[Provider] = []

    async def meet(self, *scripts: Script, settings: LLMSettings = DEFAULT) -> Provider:
        self.vendor.will(*scripts)
        self._met.append(await connect(self.choice, settings))
        return self._met[-1]

    async def aclose(self) -> None:
        for provider in self._met:
            await provider.aclose()

    @property
    def choice(self) -> ProviderChoice:
        variable = f"{self.name.upper()}_API_KEY"
        return ProviderChoice(self.name, "a-model", self.vendor.base_url, self.vendor.key, variable)


async def gemini(nursery: trio.Nursery) -> VendorWorld:
    return VendorWorld("gemini", await nursery.start(serve, gemini_wire))


async def openai(nursery: trio.Nursery) -> VendorWorld:
    return VendorWorld("openai", await nursery.start(serve, openai_wire))


async def anthropic(nursery: trio.Nursery) -> VendorWorld:
    return VendorWorld("anthropic", await nursery.start(serve, anthropic_wire))


class OddWorld(VendorWorld):
    """The server tells errors in a stream with status 200, where that has room for what is told."""

    async def meet(self, *scripts: Script, settings: LLMSettings = DEFAULT) -> Provider:
        return await super().meet(*map(_in_stream, scripts), settings=settings)


def _in_stream(script: Script) -> Script:
    if isinstance(script, Refuses) and script.after is None:
        return Says([Trouble(script.status, script.message)], finish=None)
    return script


async def odd_openai(nursery: trio.Nursery) -> VendorWorld:
    return OddWorld("openai", await nursery.start(serve, odd_openai_wire))


async def offline(nursery: trio.Nursery) -> OfflineWorld:
    await trio.lowlevel.checkpoint()
    return OfflineWorld()


VENDORS: Sequence[Callable[[trio.Nursery], Awaitable[VendorWorld]]] = (gemini, openai, anthropic)
WORLDS: Sequence[Callable[[trio.Nursery], Awaitable[World]]] = (offline, gemini, openai, odd_openai, anthropic)
