"""Sampling parameters of a request, named as in OpenAI's protocol, and which provider supports which."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import asdict

from agentos_sdk.values import ThinkingLevel

Verbosity = Literal["low", "medium", "high"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]  # of thinking
LEVELS: Mapping[Effort, ThinkingLevel] = {
    "none": "low",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
}
"""The nearest of the levels that every vendor has."""


class Sampling(Struct, frozen=True):
    """``None`` leaves the choice to the provider. ``logit_bias`` is by token number."""

    top_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[str, float] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    verbosity: Verbosity | None = None
    parallel_tool_calls: bool | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The parameters that are set."""
        return {name: value for name, value in asdict(self).items() if value is not None}


ALL_PARAMETERS = frozenset(Sampling.__struct_fields__)
SUPPORTED: Mapping[str, frozenset[str]] = {
    "openai": ALL_PARAMETERS,
    "gemini": frozenset({"top_p", "seed", "presence_penalty", "frequency_penalty"}),
    "anthropic": frozenset({"top_p", "parallel_tool_calls"}),
    "offline": ALL_PARAMETERS - {"logprobs", "top_logprobs"},  # it samples nothing, so the others have no effect
}


def unsupported_parameter(sampling: Sampling, provider: str) -> str | None:
    """The first parameter that this provider doesn't support; one set to what the provider does anyway is accepted."""
    usual = {"logprobs": False, "parallel_tool_calls": True}
    supported = SUPPORTED.get(provider, ALL_PARAMETERS)  # without a provider there is no answer anyway
    return next(
        (name for name, value in sampling.given.items() if name not in supported and usual.get(name) != value), None
    )
