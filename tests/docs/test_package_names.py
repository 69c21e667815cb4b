"""Commands that install packages, in pages, templates, messages and build files: each name is a project that is known.

A name that has no owner on the index runs the code of whoever registers it. The lists here were compared with the index
by hand; a new name is added after the same comparison.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.support.runs.rows import each_row

ROOT = Path(__file__).parents[2]
PLACES = (
    *("README.md", ".env.example", "Dockerfile", "Makefile", "docs"),
    *("agentos", "sdk", "supervisors", "demos"),
)
KINDS = frozenset({".py", ".md", ".toml", ".json", ".js", ".html", ".sh", ".example", ".txt", ""})

PYPI = frozenset(
    {
        "aider-chat",
        "anthropic",
        "autogen-agentchat",
        "crewai",
        "langchain",
        "langgraph",
        "llama-index-llms-openai",
        "mcp",
        "mcp-server-fetch",
        "mcp-server-git",
        "mcp-server-sqlite",
        "mini-swe-agent",
    }
    | {"openai", "openai-agents", "pip", "py-spy", "pydantic-ai-slim", "requests", "smolagents", "socksio"}
)
NPM = frozenset(
    {"@modelcontextprotocol/client", "@modelcontextprotocol/server-filesystem", "@modelcontextprotocol/server-github"}
    | {"@anthropic-ai/claude-code", "@google/gemini-cli", "@openai/codex", "@qwen-code/qwen-code", "opencode-ai"}
    | {"typescript"}
)

PIP = r"pip3?(?: --?\w[^ ]*(?: [^ -][^ ]*)?)* install"
INSTALLS = rf"{PIP}|uv pip install|uv (?:tool install|add)|pipx install|(?:npm|pnpm|yarn) (?:install|i|add)"
RUNS_ONE = r"npx|uvx|uv tool run|pipx run|npm exec|(?:pnpm|yarn) dlx"  # what follows the package are its own arguments
COMMAND = re.compile(rf"(?<![\w.-])(?:(?P<all>{INSTALLS})|(?P<one>{RUNS_ONE}))[ ](?P<rest>[^`;|&#\n]*)")
NAMES_PACKAGE = frozenset({"--from", "--spec", "--package", "--with", "-p"})
TAKES_VALUE = frozenset({"--cache", "--group", "--index-url", "--prefix", "--python", "-i", "-r"})
WORDS = frozenset(
    {"and", "as", "can", "chooses", "in", "into", "is", "needs", "or", "uvx"}
)  # a sentence or list goes on
LIST = re.compile(r"""["'],\s*(?:["']args["']:\s*\[\s*)?["']""")  # of a command: ["npx", "-y", "NAME"]
NAME = re.compile(r"(?P<name>@?[A-Za-z0-9][\w.-]*(?:/[\w.-]+)?)")


def named(text: str) -> Iterator[tuple[str, str]]:
    """The packages that commands in the text install, each with its index, ``pypi`` or ``npm``."""
    for found in COMMAND.finditer(LIST.sub(" ", text.replace("\\\n", " "))):
        command = found["all"] or found["one"]
        index = "npm" if command.startswith(("np", "pnpm", "yarn")) else "pypi"
        for name in _packages(found["rest"].split(), only_first=found["one"] is not None):
            yield index, name


def _packages(tokens: list[str], *, only_first: bool) -> Iterator[str]:
    after = ""
    for token in tokens:
        before, after = after, token
        bare = token.strip("[]'\"(),.:\\") if not token.strip("'\"").startswith(("./", "/", ".[")) else ""
        if bare in WORDS:
            return
        if before in TAKES_VALUE or token.startswith("-"):
            continue
        known = NAME.match(bare)
        if known is not None and not bare.isupper():  # PACKAGE stands for any
            yield known["name"].lower()
        if (only_first and before not in NAMES_PACKAGE) or token[-1] in "),:":
            return


def files() -> Iterator[Path]:
    for place in PLACES:
        top = ROOT / place
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and path.suffix in KINDS:
                yield path


def test_all_are_known() -> None:
    unknown, seen = [], set()
    for path in files():
        for index, name in named(path.read_text()):
            seen.add((index, name))
            if name not in (NPM if index == "npm" else PYPI):
                unknown.append(f"{path.relative_to(ROOT)}: {name} ({index})")
    assert not unknown, "not in the lists of this test: compare with the index first"
    assert seen == {*(("pypi", name) for name in PYPI), *(("npm", name) for name in NPM)}, "the lists name no others"


@each_row(
    "text, expected",
    [
        ("Tests (`pip install 'agentos-kernel[testing]'`):", [("pypi", "agentos-kernel")]),
        ('"MCP needs mcp: pip install \'agentos-kernel[mcp]\', and start again"', [("pypi", "agentos-kernel")]),
        ("b/pip install -q one 'two[openai]>=2' \\\n  three", [("pypi", "one"), ("pypi", "two"), ("pypi", "three")]),
        ("python -m pip --isolated install -r list.txt Made.Up==1", [("pypi", "made.up")]),
        ("uv tool install agentos", [("pypi", "agentos")]),
        ("agentos mcp add w -- uvx --from kit weather==1.4 --port 3", [("pypi", "kit"), ("pypi", "weather")]),
        ("npx -y @agentos/server /workspace", [("npm", "@agentos/server")]),
        ('command = ["npx", "-y", "made-up", "/workspace"]', [("npm", "made-up")]),
        ('"command": "uvx", "args": ["made-up"]', [("pypi", "made-up")]),
        ("npm install --prefix here typescript@5 left", [("npm", "typescript"), ("npm", "left")]),
        ("pip install '.[mcp]' in AgentOS's repository", []),
        ("`pip install -e ./sdk[trio]` and `uv tool install .`", []),
        ("`npx`, `uvx` and `pipx run PACKAGE` are", []),
    ],
)  # fmt: skip
def test_what_a_command_names(text: str, expected: list[tuple[str, str]]) -> None:
    assert list(named(text)) == expected


@each_row("file", ["pyproject.toml", "sdk/pyproject.toml", "sdk/agentos_attacks/pyproject.toml"])
def test_requirements_name_no_distribution_of_ours(file: str) -> None:
    project = tomllib.loads((ROOT / file).read_text())["project"]
    lists = [project["dependencies"], *project.get("optional-dependencies", {}).values()]
    assert [each for one in lists for each in one if each.startswith("agentos")] == []
