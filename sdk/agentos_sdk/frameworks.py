"""What agent frameworks need to run in a jail: no telemetry, caches in the workspace, and memory for their imports."""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, which isn't imported at run time
if TYPE_CHECKING:
    from collections.abc import Mapping

CACHES = "/workspace/.cache"
FOR_ALL = {
    "DO_NOT_TRACK": "1",
    "OTEL_SDK_DISABLED": "true",
    "XDG_CACHE_HOME": CACHES,
    "TIKTOKEN_CACHE_DIR": f"{CACHES}/tiktoken",
    "HF_HOME": f"{CACHES}/huggingface",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
}
FRAMEWORKS: Mapping[str, Mapping[str, str]] = {
    "langchain": {"LANGSMITH_TRACING": "false", "LANGCHAIN_TRACING_V2": "false"},
    "crewai": {
        "CREWAI_DISABLE_TELEMETRY": "true",
        "CREWAI_DISABLE_TRACKING": "true",
        "CREWAI_STORAGE_DIR": f"{CACHES}/crewai",
    },
    "autogen": {"AUTOGEN_DISABLE_RUNTIME_TRACING": "true"},
    "agents": {"OPENAI_AGENTS_DISABLE_TRACING": "1"},
}
"""The variables of each framework, beside :data:`FOR_ALL`. ``agents`` is the OpenAI Agents SDK."""

MEMORY = 1 << 30  # bytes: the import of a framework takes up to 200 MiB


def framework_env(framework: str) -> dict[str, str]:
    """The environment of a program of this framework, which is a key of :data:`FRAMEWORKS`."""
    return {**FOR_ALL, **FRAMEWORKS[framework]}
