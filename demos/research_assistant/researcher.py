"""Reads a page and all that it links to, as far as it may, and answers questions from them with their addresses."""

import json
import re
import sys
from urllib.parse import urljoin

from agentos_sdk import AgentOSClient

SYSTEM = "Answer the question in one sentence from the numbered pages alone, with the number of the page as [1]."
start, questions = sys.argv[1], sys.argv[2:]


def fetch(kernel: AgentOSClient, url: str) -> str | None:
    reply = kernel.http(url)
    if not reply["success"]:
        print(f"not read: {url}: {reply['error']}", flush=True)
        return None
    print(f"read: {url}", flush=True)
    return str(reply["body"])


with AgentOSClient() as kernel:
    first = fetch(kernel, start) or ""
    pages = {start: first}
    for link in re.findall(r'href="([^"]+)"', first):
        url = urljoin(start, link)
        if (text := fetch(kernel, url)) is not None:
            pages[url] = text
    addresses = list(pages)
    shown = "\n".join(f"[{number}] {url}\n{pages[url]}" for number, url in enumerate(addresses, 1))
    for question in questions:
        answer = kernel.think(f"Question: {question}\n{shown}", system_instruction=SYSTEM)["content"]
        numbers = {int(number) for number in re.findall(r"\[(\d+)\]", answer)}
        cited = [url for number, url in enumerate(addresses, 1) if number in numbers]
        print("answer: " + json.dumps({"question": question, "answer": answer, "sources": cited}), flush=True)
