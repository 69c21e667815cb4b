"""Why a model ended its answer: one meaning for the words of all vendors. No I/O."""

from collections.abc import Mapping
from typing import Final

from agentos.llm.providers.provider import FinishReason

LENGTHS: Final = ("length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded")
FILTERS: Final = (
    *("content_filter", "content_filtered", "refusal", "sensitive", "guardrail_intervened", "error_toxic", "safety"),
    *("recitation", "language", "blocklist", "prohibited_content", "spii", "escalation", "model_armor"),
    *("image_safety", "image_prohibited_content", "image_recitation"),
)
STOPS: Final = (
    *("stop", "stop_sequence", "stop_token", "stopped", "eos", "eos_token", "end", "end_turn", "pause_turn"),
    *("complete", "completed", "done", "finished"),
)
CALLS: Final = ("tool_calls", "tool_call", "tool_use", "function_call", "function_calls")
FINISH_REASONS: Final[Mapping[str, FinishReason]] = {
    **dict.fromkeys(STOPS, "stop"),
    **dict.fromkeys(LENGTHS, "length"),
    **dict.fromkeys(CALLS, "tool_calls"),
    **dict.fromkeys(FILTERS, "content_filter"),
}
"""By the vendor's word in lower case. An answer with another word is complete as well, if anything is in it."""

FAILURES: Final = frozenset(
    {"error", "failed", "abort", "aborted", "cancelled", "network_error", "timeout", "insufficient_system_resource"}
)
"""Words of an answer that broke off: a later attempt may succeed."""

NOT_YET: Final = frozenset({"null", "none", "finish_reason_unspecified", "unspecified"})
"""Words that some servers put into each piece, in place of null."""

MALFORMED_CALL: Final = "malformed_function_call"


def plain_word(word: str) -> str:
    """The word as it stands in the tables; Gemini's OpenAI address sends ``content_filter: RECITATION``."""
    return word.partition(":")[0].strip().lower()
