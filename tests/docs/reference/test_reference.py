"""The reference is complete: every call, field, key, command and option has its words, and none is invented."""

import re
import tomllib
from collections.abc import Callable, Iterator
from inspect import Parameter, iscoroutinefunction
from inspect import signature as inspect_signature
from pathlib import Path

import attrs
import click
import pytest

import supervisors
from agentos import __version__
from agentos.agents.life.lifecycle import State
from agentos.config import schema
from agentos.config.tables import llm, llm_routes, telemetry
from agentos.llm import settings
from agentos.permissions.sets import schema as set_schema
from agentos.telemetry.settings import OtelSettings
from agentos.userland.cli.main import COMMANDS, cli
from agentos_sdk import AgentOSClient, Kernel, values
from agentos_sdk.calls import agents, connection, host, inspect, kernel, messages, think
from agentos_sdk.calls.operator import audit, contents, metrics, permissions
from agentos_sdk.calls.request import Request
from agentos_sdk.errors import BY_CODE
from agentos_sdk.opcodes import Op
from tests.docs.blocks import ROOT, blocks_of, pages
from tests.docs.visit import Visit
from tests.sdk.test_calls_of_clients import METHODS
from tests.support.kernel import running
from tests.support.runs.rows import each_row
from tests.support.wire import PATIENCE

REFERENCE = ROOT / "docs" / "reference"
CALLS = REFERENCE / "calls"
REQUESTS: list[type[Request[object]]] = [
    value
    for module in (agents, audit, connection, contents, host, inspect, kernel, messages, metrics, permissions, think)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, Request) and value is not Request
]
TABLES = {
    "`[kernel]`": schema.KernelSettings,
    "`[llm]`": llm.LLMTable,
    "`timeouts`": settings.Timeouts,
    "`retry`": settings.Retry,
    "`[llm.providers.NAME]`": llm_routes.ProviderTable,
    '`[llm.limits."MODEL"]`': settings.ModelLimits,
    "`[llm.offline]`": settings.OfflineSettings,
    "`[metrics]`": telemetry.MetricsTable,
    "`[otel]`": OtelSettings,
    "`[permissions.NAME]`": set_schema.SetTable,
    "`[supervisor]`": schema.RootTable,
    "`[[agents]]`": schema.AgentTable,
    "`backoff`": values.Backoff,
    "`limits`": values.Limits,
}


@pytest.fixture(scope="module")
def served() -> Iterator[set[Op]]:
    """The calls that a running kernel knows, found by making each of them."""
    visit = Visit()
    try:
        visit.begin_kernel()
        yield {op for op in Op if answers(str(next(visit.runtime.glob("agentos/*.sock"))), op)}
    finally:
        visit.close()


def answers(socket: str, op: Op) -> bool:
    with AgentOSClient(socket, timeout=PATIENCE) as kernel:
        body = kernel.call(op, b'{"no such": "field"}')  # never what a call takes: SHUTDOWN would act
    return b"unknown_call" not in body


def section(text: str, heading: str) -> str:
    """What stands below a heading of the second level."""
    found = re.search(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"there is no section {heading!r}"
    return found[1]


def fields(cls: type) -> list[str]:
    return [field.name.rstrip("_") for field in attrs.fields(cls)]


def test_every_call_that_is_served_has_a_page_and_no_other_has_one(served: set[Op]) -> None:
    written = {page.stem for page in CALLS.glob("*.md")} - {"README"}

    assert written == {op.name.lower() for op in served | {Op.CHUNK}}


@each_row("name", sorted(page.stem for page in CALLS.glob("[a-z]*.md")))
def test_a_page_begins_with_the_name_and_number_of_its_call(name: str) -> None:
    op = Op[name.upper()]

    assert (CALLS / f"{name}.md").read_text().startswith(f"# {op.name} (0x{op.value:02X})\n")


def test_the_table_of_calls_has_every_number_and_name() -> None:
    rows = re.findall(r"^\| ((?:0x\w\w ?)+)\| ([^|]+)\|", (CALLS / "README.md").read_text(), re.MULTILINE)
    listed: dict[str, str] = {}
    for numbers, names in rows:
        plain = re.sub(r"\[(\w+)\]\([\w.]+\)", r"\1", names)
        listed |= dict(zip(numbers.split(), plain.split(), strict=True))

    assert listed == {f"0x{op.value:02X}": op.name for op in Op}


@each_row("request_type", REQUESTS, ids=lambda cls: str(cls.op.name))
def test_a_page_names_every_field_of_request_and_reply(request_type: type[Request[object]]) -> None:
    text = (CALLS / f"{request_type.op.name.lower()}.md").read_text()
    reply = getattr(request_type.reply, "__args__", [request_type.reply])[0]

    unnamed = [name for name in [*fields(request_type), *fields(reply)] if f"`{name}`" not in text]
    assert [name for name in unnamed if name != "success"] == []


@each_row(("heading", "table"), TABLES.items(), ids=list(TABLES))
def test_every_key_of_the_configuration_is_described(heading: str, table: type) -> None:
    text = section((REFERENCE / "configuration.md").read_text(), heading)
    described = re.findall(r"^\| `(\w+)`", text, re.MULTILINE)

    assert sorted(described) == sorted(fields(table))


def test_every_key_of_a_budget_is_described() -> None:
    text = section((REFERENCE / "configuration.md").read_text(), "Budget and weight")
    described = re.findall(r"^\| `(\w+)`", text, re.MULTILINE)

    assert sorted(described) == sorted([*fields(values.Share), *fields(values.Budget)])


@pytest.mark.usefixtures("kernels")
def test_all_that_lies_in_the_state_directory_is_described(tmp_path: Path) -> None:
    with running() as kernel, kernel.client() as client:
        client.spawn("keeper", command=["sleep", "1000"], workspace="keep")
        client.spawn("visitor", command=["sleep", "1000"], workspace=str(tmp_path))
        found = {path.name for path in kernel.state_dir.iterdir()}
    text = section((REFERENCE / "configuration.md").read_text(), "The state directory")
    described = set(re.findall(r"^\| `([\w.-]+)/?` \|", text, re.MULTILINE))

    assert {name.removesuffix("-wal").removesuffix("-shm").removesuffix(".new") for name in found} <= described


def test_the_help_of_state_dir_names_what_is_kept_there() -> None:
    command = cli.get_command(click.Context(cli), "run")
    assert command is not None
    [told] = [
        option.help for option in command.params if isinstance(option, click.Option) and option.name == "state_dir"
    ]

    assert told is not None
    assert [
        word for word in ("database", "audit log", "workspaces", "uids", "lock", "run's id") if word not in told
    ] == []


@each_row("name", COMMANDS)
def test_every_option_of_a_command_is_described(name: str) -> None:
    text = section((REFERENCE / "cli.md").read_text(), f"agentos {name}")
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    commands = [command, *(command.commands.values() if isinstance(command, click.Group) else ())]
    options = {
        option for one in commands for parameter in one.params for option in parameter.opts if option.startswith("-")
    }

    described = set(re.findall(r"`(--?[A-Za-z][a-z-]*)", text))
    assert described | {"--socket"} == options | {"--socket"}  # which the top of the page describes


def public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


@pytest.mark.parametrize(("heading", "client"), [("AgentOSClient", AgentOSClient), ("connect()", Kernel)])
def test_every_method_of_a_client_is_described(heading: str, client: type) -> None:
    page = (REFERENCE / "sdk.md").read_text()
    described = set(re.findall(r"`(\w+)", section(page, heading) + section(page, "Methods")))

    assert public(client) - described == set()


def signature(method: Callable[..., object]) -> str:
    """The parameters of a method as the page shows them: those that are None without a default."""
    _, *parameters = inspect_signature(method).parameters.values()
    plain = (Parameter.empty, None)
    shown = [each.name if each.default in plain else f"{each.name}={each.default!r}" for each in parameters]
    kinds = [each.kind for each in parameters]
    if Parameter.KEYWORD_ONLY in kinds:
        shown.insert(kinds.index(Parameter.KEYWORD_ONLY), "*")
    return ", ".join(shown)


def test_the_methods_of_both_clients_are_described_with_their_parameters() -> None:
    text = section((REFERENCE / "sdk.md").read_text(), "Methods")
    rows = re.findall(r"^\| `(\w+)\((.*?)\)`", text, re.MULTILINE)

    assert {name for name, _ in rows} == {*METHODS, "echo", "messages"}
    for name, parameters in rows:
        begin, ellipsis, _ = parameters.partition("...")
        expected = signature(getattr(AgentOSClient, name))
        assert expected.startswith(begin) if ellipsis else expected == begin, name


def test_the_results_of_the_trio_client_are_described() -> None:
    text = section((REFERENCE / "sdk.md").read_text(), "Methods")
    rows = dict(re.findall(r"^\| `(\w+)\(.*\| ([^|]+) \|$", text, re.MULTILINE))

    for method in METHODS:
        result = str(inspect_signature(getattr(Kernel, method)).return_annotation)
        named = re.findall(r"`(\w+)`", rows[method]) if iscoroutinefunction(getattr(Kernel, method)) else []
        assert all(re.search(rf"\b{name}\b", result) for name in named), (method, result)


def test_every_name_of_the_supervision_library_is_described() -> None:
    text = (REFERENCE / "supervisors.md").read_text()

    assert [name for name in supervisors.__all__ if not re.search(rf"\b{name}\b", text)] == []


def test_every_state_of_an_agent_is_described() -> None:
    described = re.findall(r"^\| `(\w+)` \|", (CALLS / "list.md").read_text(), re.MULTILINE)

    assert set(State) <= set(described)


def test_every_code_of_an_error_is_described() -> None:
    text = section((REFERENCE / "wire.md").read_text(), "Errors")

    assert set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE)) == set(BY_CODE)


def test_pages_import_the_client_from_where_the_sdk_alone_has_it() -> None:
    blocks = [block for page in pages() for block in blocks_of(page) if block.language == "python"]

    assert [block.where for block in blocks if "from agentos import" in block.text] == []


def test_the_opcode_of_hello_stands_where_a_client_is_written() -> None:
    assert f"HELLO ({Op.HELLO:#x}".upper() in (ROOT / "docs" / "how-to" / "write-a-client.md").read_text().upper()


@pytest.mark.parametrize(("place", "dependencies"), [("sdk", []), ("sdk/agentos_attacks", ["attrs>=25.1"])])
def test_another_distribution_has_the_version_of_the_kernel_and_few_dependencies(
    place: str, dependencies: list[str]
) -> None:
    project = tomllib.loads((ROOT / place / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__
    assert project["dependencies"] == dependencies
