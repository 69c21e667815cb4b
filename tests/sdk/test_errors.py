"""One class for each code of the document, the same on both sides of the socket."""

import re

import pytest

from agentos_sdk import errors
from agentos_sdk.errors import BY_CODE, AgentOSError, CallError, ConnectionFailed, Internal, NotFound, from_reply
from tests.support.runs.rows import each_row

CODES = re.findall(
    r"\w+",
    """
    bad_frame too_large bad_request unknown_call permission_denied approval_required approval_refused not_found
    already_exists busy conflict quota_exceeded timeout cancelled unavailable isolation_unavailable internal
    """,
)


def test_every_code_of_the_document_has_its_class() -> None:
    assert sorted(BY_CODE) == sorted(CODES)


def test_no_class_was_forgotten() -> None:
    classes = {each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, CallError)}

    assert classes - {CallError} == set(BY_CODE.values())


@each_row("code", CODES)
def test_a_failed_reply_becomes_its_class(code: str) -> None:
    error = from_reply({"success": False, "error": "a sentence", "code": code, "stderr": ["last words"]})

    assert type(error) is BY_CODE[code]
    assert error.code == code
    assert str(error) == "a sentence"
    assert error.details == {"stderr": ["last words"]}


@pytest.mark.parametrize("code", [{"code": "from_the_future"}, {"code": None}, {"code": []}, {}])
def test_an_unknown_code_is_still_a_call_error(code: dict[str, object]) -> None:
    assert type(from_reply({"success": False, "error": "a sentence", **code})) is CallError


@pytest.mark.parametrize("reply", [{}, {"error": None}, {"error": ""}])
def test_an_error_always_says_something(reply: dict[str, object]) -> None:
    assert str(from_reply({"success": False, "code": "busy", **reply}))


def test_whatever_this_sdk_raises_can_be_caught_as_one() -> None:
    assert issubclass(CallError, AgentOSError)
    assert issubclass(ConnectionFailed, AgentOSError)
    assert issubclass(ConnectionFailed, ConnectionError)
    assert not issubclass(CallError, ConnectionError)


def test_details_are_kept_beside_the_text() -> None:
    assert NotFound("gone", agent=7).details == {"agent": 7}
    assert Internal("x").details == {}
