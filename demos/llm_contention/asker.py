"""Asks a model the given questions: as an agent through its kernel, or as any program at a provider's URL.

A task is ``{"questions": [...], "at_once": true}``; the answer is a result for each question.
"""

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from agentos import AgentOSClient

ATTEMPTS, PAUSE = 5, 0.1  # tries per question, and seconds between them

Reply = dict[str, Any]
Ask = Callable[[str], Reply]


def ask_through_kernel(question: str) -> Reply:
    with AgentOSClient() as kernel:
        reply = kernel.think(question)
    worked = reply["latency_ms"] - reply["queued_ms"] if reply["success"] else 0.0
    return {**reply, "worked_ms": worked, "refused": 0}


def ask_directly(url: str, question: str) -> Reply:
    reply: Reply = {}
    for attempt in range(ATTEMPTS):
        try:
            with urllib.request.urlopen(url, json.dumps({"prompt": question}).encode(), timeout=60) as answer:
                reply = json.load(answer)
                return {**reply, "refused": attempt}
        except urllib.error.HTTPError as error:
            reply = {"success": False, "error": f"{error.code} {error.reason}", "worked_ms": 0.0}
            error.close()
            time.sleep(PAUSE)
    return {**reply, "refused": ATTEMPTS}


def timed(ask: Ask, question: str) -> Reply:
    asked_at = time.monotonic()  # the same clock for all processes
    return {**ask(question), "asked_at": asked_at, "answered_at": time.monotonic()}


def all_of(ask: Ask, questions: list[str], at_once: bool) -> list[Reply]:
    with ThreadPoolExecutor(len(questions) if at_once else 1) as threads:
        return list(threads.map(partial(timed, ask), questions))


def agent() -> None:
    with AgentOSClient() as kernel:
        kernel.send_message("ready", to_name="narrator")
        task = kernel.recv_messages(max_messages=1, timeout=60)["messages"][0]["message"]
        kernel.send_message(all_of(ask_through_kernel, **task), to_name="narrator")


def program(url: str, lines: Iterable[str]) -> None:
    print("ready", flush=True)
    for line in lines:
        print(json.dumps(all_of(partial(ask_directly, url), **json.loads(line))), flush=True)


if len(sys.argv) > 1:
    program(sys.argv[1], sys.stdin)
else:
    agent()
