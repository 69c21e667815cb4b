"""Shared by the three: the tool, and HTTP where a vendor's SDK isn't installed."""

import json
import subprocess
import urllib.request
from collections.abc import Mapping
from typing import Any

ABOUT = "Run a command line in the working directory."
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}


def run(command: str) -> str:
    """What a command prints."""
    print(f"$ {command}", flush=True)
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True)
    return done.stdout + done.stderr


def post(url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
    """The answer to a request as JSON."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json", **headers})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)
