"""Expression to answer: first quickly, and carefully where the verifier sends the quick answer back.

Quick is how a pocket calculator does it: from left to right, key by key. Careful knows that * and / come first.
"""

import ast
import operator
import re
import sys
import time
from collections.abc import Callable
from fractions import Fraction

from agentos import AgentOSClient

THINKING = 0.7  # seconds that it takes over each question, for people to follow it

Operation = Callable[[Fraction, Fraction], Fraction]
KEYS: dict[str, Operation] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
NODES: dict[type[ast.operator], Operation] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def quick(expression: str) -> Fraction:
    """Key by key."""
    first, *rest = re.findall(r"\d+|[-+*/]", expression)
    shown = Fraction(first)
    for key, number in zip(rest[::2], rest[1::2], strict=True):
        shown = KEYS[key](shown, Fraction(number))
    return shown


def careful(expression: str) -> Fraction:
    """By Python's own grammar, which knows precedence; nothing but numbers and the four operations is taken."""

    def value(node: ast.expr) -> Fraction:
        match node:
            case ast.Constant(int(number)):
                return Fraction(number)
            case ast.BinOp(left, operation, right):
                return NODES[type(operation)](value(left), value(right))
        raise ValueError(f"no arithmetic: {expression}")

    return value(ast.parse(expression, mode="eval").body)


def main() -> None:
    with AgentOSClient() as kernel:
        while True:
            for message in kernel.recv_messages(max_messages=1, timeout=60)["messages"]:
                problem = message["message"]
                method = careful if "rejected" in problem else quick
                print(f"question {problem['number']}: thinking ({method.__name__})", flush=True)
                time.sleep(THINKING)
                problem["answer"] = str(method(problem["expression"]))
                print(f"question {problem['number']}: {problem['expression']} = {problem['answer']}", flush=True)
                sent = kernel.send_message(problem, to_name="verifier")
                if not sent["success"]:
                    sys.exit(sent["error"])


if __name__ == "__main__":
    main()
