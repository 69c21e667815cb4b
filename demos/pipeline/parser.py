"""Text to expression, by rules: no language model is at work here, just patterns for five kinds of phrases."""

import re
import sys
from collections.abc import Iterator

from agentos import AgentOSClient

RULES = [  # a phrase, and what it does to the expression so far; {0} and {1} are its numbers
    (re.compile(r"(\d+) \w+ (?:of|at) (\d+)"), "+ {0} * {1}"),
    (re.compile(r"(\d+) \w+ a week for (\d+) weeks"), "+ {0} * {1}"),
    (re.compile(r"(?:gives away|spends|loses|sells) (\d+)"), "- {0}"),
    (re.compile(r"(\d+) are taken"), "- {0}"),
    (re.compile(r"shared equally among (\d+)"), "/ {0}"),
    (re.compile(r"(\d+)"), "+ {0}"),
]


def phrases(text: str) -> Iterator[str]:
    """The pieces of the expression in the text's order; of rules that match at one place the first one counts."""
    place = 0
    while found := [(match, piece) for rule, piece in RULES if (match := rule.search(text, place))]:
        match, piece = min(found, key=lambda one: one[0].start())
        yield piece.format(*match.groups())
        place = match.end()


def parse(text: str) -> str:
    """The text's arithmetic, such as ``3 * 12 - 7``; empty if there is none in it."""
    expression = ""
    for piece in phrases(text):
        if piece[0] == "/" and ("+" in expression or "-" in expression):
            expression = f"({expression})"
        expression = f"{expression} {piece}" if expression else piece.removeprefix("+ ")
    return expression


def main() -> None:
    with AgentOSClient() as kernel:
        while True:
            for message in kernel.recv_messages(max_messages=1, timeout=60)["messages"]:
                problem = message["message"]
                problem["expression"] = parse(problem["text"])
                print(f"question {problem['number']}: {problem['expression'] or 'not understood'}", flush=True)
                understood = bool(problem["expression"])
                if not understood:
                    problem["problem"] = "the parser has no rule for this text"
                sent = kernel.send_message(problem, to_name="reasoner" if understood else "orchestrator")
                if not sent["success"]:
                    sys.exit(sent["error"])


if __name__ == "__main__":
    main()
