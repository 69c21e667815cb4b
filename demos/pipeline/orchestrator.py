"""Spawns the three, sends the questions into the pipeline, and collects the answers that come out of it.

A message that an agent has taken is lost if the agent crashes. So questions that are unanswered after a while are sent
again, and an answer that comes twice is counted once.
"""

import os
import sys
from typing import Any

from agentos import AgentOSClient

HERE = os.path.dirname(os.path.abspath(__file__))
RESEND_SECONDS = 3.0  # seconds without any answer, after which the open questions are sent again
MAX_RESENDS = 5  # rounds without an answer before it gives up
VERDICT = {True: "verified", False: "NOT VERIFIED"}


def spawn(kernel: AgentOSClient, name: str) -> None:
    reply = kernel.spawn(name, f"{HERE}/{name}.py", restart="permanent")
    if not reply["success"]:
        sys.exit(f"{name}: {reply['error']}")
    print(f"{name} is process {reply['pid']}", flush=True)


def ask(kernel: AgentOSClient, number: int, text: str) -> None:
    sent = kernel.send_message({"number": number, "text": text}, to_name="parser")
    if not sent["success"]:
        sys.exit(sent["error"])


def solve(kernel: AgentOSClient, questions: dict[int, str]) -> dict[int, dict[str, Any]]:
    """Each question with the results of parser, reasoner and verifier."""
    solved: dict[int, dict[str, Any]] = {}
    rounds = 0
    while len(solved) < len(questions) and rounds < MAX_RESENDS:
        unanswered = [number for number in questions if number not in solved]
        if rounds:
            print(f"no answer for {RESEND_SECONDS:g} s: question {', '.join(map(str, unanswered))} again", flush=True)
        for number in unanswered:
            ask(kernel, number, questions[number])
        rounds += 1
        while len(solved) < len(questions):
            messages = kernel.recv_messages(timeout=RESEND_SECONDS)["messages"]
            if not messages:
                break
            rounds = 1
            for message in messages:
                found = message["message"]
                if found.get("event") == "AGENT_ESCALATED":  # sent by the kernel to the agent that spawned it
                    sys.exit(f"{found['name']} was given up: {found['reason']}")
                solved[found["number"]] = found
    return solved


def report(questions: dict[int, str], solved: dict[int, dict[str, Any]]) -> bool:
    """Print each question with its answer; whether all of them are verified."""
    for number, text in questions.items():
        found = solved.get(number, {})
        print(f"{number}. {text}")
        if "answer" in found:
            print(f"   {found['expression']} = {found['answer']}")
            print(f"   {VERDICT[found['verified']]} by going back: {found['proof']}")
        else:
            print(f"   no answer: {found.get('problem', 'nothing came back')}")
    right = sum(found.get("verified") is True for found in solved.values())
    print(f"{right} of {len(questions)} answers verified", flush=True)
    return right == len(questions)


def main() -> None:
    with open(f"{HERE}/{sys.argv[1]}", encoding="utf-8") as file:
        questions = dict(enumerate((line.strip() for line in file if line.strip()), 1))
    with AgentOSClient() as kernel:
        for name in ("verifier", "reasoner", "parser"):
            spawn(kernel, name)
        sys.exit(0 if report(questions, solve(kernel, questions)) else 1)


if __name__ == "__main__":
    main()
