"""The text that stands for one command in a remembered answer."""

from hypothesis import example, given
from hypothesis import strategies as st

from agentos.permissions.approvals.answers import encodable
from agentos.permissions.exec_request import ExecRequest
from agentos.shell.reading import Commands

# Pieces of the text itself, so that a command can try to look like another one with its directory.
PIECES = st.lists(
    st.sampled_from(
        (
            "ls",
            " in ",
            " with ",
            "/workspace",
            "the host directory ",
            '"',
            "'",
            "\\",
            "\\n",
            "\n",
            "é",
            "\ud83d",
            "\ude00",
            "😀",
        )
    ),
    max_size=6,
).map("".join)
REQUESTS = st.builds(
    lambda text, directory, jailed, given: ExecRequest(Commands(text, (), ()), directory, jailed, given=given),
    *(PIECES, PIECES.map("/".__add__), st.booleans(), st.sampled_from(("", "a terminal"))),
)


def request(text: str, directory: str) -> ExecRequest:
    return ExecRequest(Commands(text, (), ()), directory, jailed=True)


@given(REQUESTS, REQUESTS)
@example(request("ls", "/a; x # in /b"), request("ls in /a; x #", "/b"))
def test_two_commands_never_have_the_same_exact_text(one: ExecRequest, other: ExecRequest) -> None:
    same = encodable(one.exact_text) == encodable(other.exact_text)

    assert same == (one == other)


def test_the_exact_text_of_a_command_is_readable() -> None:
    assert request("git pull", "/workspace").exact_text == '"git pull" in "/workspace"'
