"""What the adapters of chat models share."""

from typing import Any

import pytest

from agentos_sdk.adapters.questions import (
    MAX_SIGNATURES,
    Signatures,
    check_settings,
    choose_tool,
    read_arguments,
    write_arguments,
)
from tests.support.runs.rows import each_row


@each_row("arguments", [{"path": "a"}, {}, "no object", "[" * 100_000])
def test_arguments_that_are_written_are_read_again(arguments: Any) -> None:
    assert read_arguments(write_arguments(arguments)) == arguments
    assert read_arguments("") == {}


def test_a_call_is_sent_back_with_its_signature() -> None:
    kept = Signatures()
    kept.keep([{"id": "a", "signature": "signed"}, {"id": "b", "signature": None}])

    assert kept.sign({"id": "a"})["signature"] == "signed"
    assert kept.sign({"id": "b"})["signature"] is None


def test_the_oldest_signatures_are_dropped() -> None:
    kept = Signatures()
    for number in range(MAX_SIGNATURES + 1):
        kept.keep([{"id": str(number), "signature": "signed"}])

    assert kept.sign({"id": "0"})["signature"] is None
    assert kept.sign({"id": "1"})["signature"] == "signed"


def test_unknown_settings_and_tools_are_named() -> None:
    check_settings(["model", "temperature"])
    with pytest.raises(TypeError, match="seed: the kernel's model has no such setting"):
        check_settings(["model", "seed"])
    with pytest.raises(ValueError, match="got 'other' with add"):
        choose_tool([{"name": "add"}], "other")
