"""Checks an answer by going back: undoes each operation, the last one first, and must arrive at the first number.

It shares no code with the reasoner and goes the other way; but it starts from the same expression, so what it can
find is a wrong calculation, not a wrong reading of the text.
"""

import re
import sys
from fractions import Fraction

from agentos import AgentOSClient

UNDO = {"+": "-", "-": "+", "*": "/", "/": "*"}


def apply(sign: str, left: Fraction, right: Fraction) -> Fraction:
    if sign in "+-":
        return left + (right if sign == "+" else -right)
    return left * (right if sign == "*" else 1 / right)


def last_operation(tokens: list[str]) -> int | None:
    """Where the operation stands that is done last: outside brackets, the last + or -, else the last * or /."""
    depth, found = 0, {"+": -1, "*": -1}
    for place, token in enumerate(tokens):
        depth += (token == "(") - (token == ")")
        if depth == 0 and token in UNDO:
            found["+" if token in "+-" else "*"] = place
    place = found["+"] if found["+"] >= 0 else found["*"]
    return place if place >= 0 else None


def product(tokens: list[str]) -> Fraction:
    """The value of a term such as ``2 * 4``."""
    value = Fraction(tokens[0])
    for sign, number in zip(tokens[1::2], tokens[2::2], strict=True):
        value = apply(sign, value, Fraction(number))
    return value


def go_back(expression: str, answer: str) -> tuple[bool, str]:
    """Whether the way back from the answer leads to the first number, and the way itself."""
    tokens, value, way = re.findall(r"\d+|[-+*/()]", expression), Fraction(answer), []
    while len(tokens) > 1:
        place = last_operation(tokens)
        if place is None:  # all of it is in brackets
            tokens = tokens[1:-1]
            continue
        sign, term = UNDO[tokens[place]], product(tokens[place + 1 :])
        before, value = value, apply(sign, value, term)
        way.append(f"{before} {sign} {term} = {value}")
        tokens = tokens[:place]
    right = value == Fraction(tokens[0])
    return right, ", ".join(way) + ("" if right else f", not {tokens[0]}")


def main() -> None:
    with AgentOSClient() as kernel:
        while True:
            for message in kernel.recv_messages(max_messages=1, timeout=60)["messages"]:
                problem = message["message"]
                right, way = go_back(problem["expression"], problem["answer"])
                again = not right and "rejected" not in problem
                print(f"question {problem['number']}: {way}: {'right' if right else 'WRONG'}", flush=True)
                problem |= {"verified": right, "proof": way}
                if again:
                    problem["rejected"] = problem["answer"]
                sent = kernel.send_message(problem, to_name="reasoner" if again else "orchestrator")
                if not sent["success"]:
                    sys.exit(sent["error"])


if __name__ == "__main__":
    main()
