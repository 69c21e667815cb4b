"""What to write instead, for mistakes that are made often: it is added to their messages."""

import re
import tomllib

from .toml_lines import Keys

_VALUE = re.compile(r"""=\s*(?P<bare>[^\s"'\[\]{},#=]+)""")
_COUNT = re.compile(r"expected a whole number.*, got '(?P<digits>\d+(?:\.\d+)?) ?(?P<unit>[kKmMgG])'")
_THOUSANDS = {"k": 10**3, "m": 10**6, "g": 10**9}
_OTHER_SERVERS = (
    '; a server of another kind that speaks OpenAI\'s protocol (Ollama, vLLM, LM Studio, Groq) is "openai", '
    'with its base_url, such as "http://127.0.0.1:11434/v1" for Ollama'
)


def fix_syntax(line: str, sentence: str) -> str:
    """What to write instead in a line that isn't TOML, after a colon; empty where that isn't known."""
    if sentence.startswith("cannot overwrite a value"):
        return ": the key stands in this table twice"
    if sentence.startswith((r"illegal character '\n'", 'expected "', "unterminated string")):
        return ": a text isn't closed, a quote is missing"
    for found in _VALUE.finditer(line):
        try:
            tomllib.loads(f"key = {found['bare']}")
        except tomllib.TOMLDecodeError:
            return f': text stands in quotes, did you mean "{found["bare"]}"?'
    return ""


def fix_value(keys: Keys, message: str) -> str:
    """The message, with what to write instead where that is known."""
    if found := _COUNT.search(message):
        count = float(found["digits"]) * _THOUSANDS[found["unit"].lower()]
        return f"{message}, did you mean {count:_.0f}?"
    is_provider = keys == ("llm", "provider") or (keys[:2] == ("llm", "providers") and keys[3:] == ("type",))
    if is_provider and ", got " in message:
        return f"{message}{_OTHER_SERVERS}"
    if keys == ("agents",) and message.startswith("expected an array"):
        return "expected tables [[agents]], one for each agent"
    if message == "expected an array, got keys and values":
        return f"{message}: put them into brackets, as in [{{ … }}]"
    return message
