"""Packages of MCP servers: what ``npx``, ``uvx`` and ``pipx run`` would fetch at each start is installed once instead.

The installation runs as an agent in a jail that reaches the package registry alone. What it has installed goes to the
state directory, from where it runs without network.
"""

import importlib.util
import ipaddress
import json
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from agentos.userland.cli.common import Failed, check_reply, printable
from agentos_sdk import AgentOSClient

INSTALL_SECONDS: Final = 600.0
MAX_COPIED: Final = 2 << 30  # bytes of the installed files together
LIMITS: Final = {"memory": "1G", "disk": MAX_COPIED, "inodes": 200_000, "max_pids": 256, "open_files": 4096}
SHOWN_LINES: Final = 15  # of the output of an installation that failed
CODE: Final = "/agent"  # where a jail has the installed files
MAX_MANIFEST: Final = 1 << 20  # bytes of a package.json
NPM_NAME: Final = re.compile(r"(@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*")
PIP_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

NPM_SCRIPT: Final = (
    'mkdir package && cd package && echo "{}" > package.json && '
    'exec npm install --no-audit --no-fund --ignore-scripts --cache /workspace/cache -- "$1"'
)
PIP_SCRIPT: Final = (
    'python=$1 && shift && "$python" -m venv --without-pip package && exec "$python" -m pip --python package/bin/python'
    ' install --no-input --disable-pip-version-check --no-cache-dir -- "$@"'
)


class Package(NamedTuple):
    """A package to install: ``spec`` is what npm or pip gets, ``program`` the command in it that is the server.

    ``beside`` are further packages of uvx's ``--with``, such as an older one that it needs.
    """

    kind: Literal["npm", "pip"]
    spec: str
    name: str
    program: str | None
    args: Sequence[str]
    beside: Sequence[str] = ()


def parse_package(command: Sequence[str]) -> Package | None:
    """The package that this command would fetch when it runs; None for any other command. Raises ``Failed``."""
    words = list(command)
    runner = os.path.basename(words.pop(0))
    if runner in ("pipx", "uv"):
        expected = {"pipx": ["run"], "uv": ["tool", "run"]}[runner]
        if words[: len(expected)] != expected:
            return None
        words = words[len(expected) :]
    elif runner not in ("npx", "uvx"):
        return None
    options = {"npx": ("-p", "--package"), "pipx": ("--spec",)}.get(runner, ("--from",))
    given, beside, rest = _take_options(runner, words, options)
    if not rest and given is None:
        raise Failed(f"{runner}: expected the name of a package")
    if runner == "npx":
        return _npm_package(given or rest[0], rest[0] if given and rest else None, rest[1:])
    package = _pip_package(given or rest[0], rest[0] if rest else None, rest[1:])
    return package._replace(beside=[_pip_package(spec, None, ()).spec for spec in beside])


def _take_options(runner: str, words: list[str], of_package: Sequence[str]) -> tuple[str | None, list[str], list[str]]:
    """The package that an option names, those of ``--with``, and the words from the first one that is no option."""
    given, beside = None, list[str]()
    while words and words[0].startswith("-"):
        word, has_value, value = words.pop(0).partition("=")
        if word == "--":
            break
        if word in of_package:
            given = value if has_value else words.pop(0) if words else None
        elif word == "--with" and runner.startswith("uv"):
            beside += [value] if has_value else words[:1]
            words = words if has_value else words[1:]
        elif not (runner == "npx" and word in ("-y", "--yes")):
            known = ", ".join({"npx": ("-y", *of_package), "pipx": of_package}.get(runner, (*of_package, "--with")))
            raise Failed(f"{runner} {word}: expected no option but {known} before the package's name")
    return given, beside, words


def _npm_package(spec: str, program: str | None, args: Sequence[str]) -> Package:
    at = spec.find("@", 1)
    name = spec[:at] if at > 0 else spec
    if not NPM_NAME.fullmatch(name):
        raise Failed(f"npx {printable(spec)}: expected a package of the registry, such as @scope/name or name@1.2.3")
    return Package("npm", spec, name, program, args)


def _pip_package(spec: str, program: str | None, args: Sequence[str]) -> Package:
    spec = spec.removesuffix("@latest")
    if "@" in spec and "==" not in spec:
        spec = spec.replace("@", "==", 1)  # uvx's way to write it
    name = re.split(r"[\[=<>!~;\s]", spec, maxsplit=1)[0]
    if not PIP_NAME.fullmatch(name):
        raise Failed(f"{printable(spec)}: expected a package of the index, such as name or name==1.2.3")
    program = re.split(r"[\[=<>!~@]", program, maxsplit=1)[0] if program is not None else name
    return Package("pip", spec, name, program, args)


# -- Installing --------------------------------------------------------------------------------------------------------


def install(client: AgentOSClient, server: str, package: Package, place: Path) -> Sequence[str]:
    """Install a package into the directory ``place``; returns the command that runs it in a jail. Raises ``Failed``."""
    _check_tools(package)
    with tempfile.TemporaryDirectory(prefix="agentos-mcp-", ignore_cleanup_errors=True) as workspace:
        _run(client, server, package, workspace)
        made = Path(workspace, "package")
        if made.is_symlink() or not made.is_dir():  # a symlink of the jail's could lead to any directory of the host
            raise Failed(f"{package.name} isn't installed: it left no directory of its own")
        command = find_command(package, made)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _copy(package, made, place)
        for directory, _, files in os.walk(place):
            os.chmod(directory, 0o755)
            for file in files:
                path = os.path.join(directory, file)
                if not os.path.islink(path):
                    os.chmod(path, 0o755 if os.stat(path).st_mode & 0o100 else 0o644)
    return command


def _copy(package: Package, made: Path, place: Path) -> None:
    """Copy what was installed. Symlinks are copied as such: only the jail that gets the copy follows them.

    A copy has no holes and no hard links, so that it may need a thousand times the disk that its jail was allowed.
    """
    walked = (os.path.join(directory, name) for directory, _, names in os.walk(made) for name in names)
    needed = sum(os.lstat(path).st_size for path in walked)
    if needed > MAX_COPIED:
        raise Failed(f"{package.name} isn't installed: its files have {needed} bytes, more than {MAX_COPIED}")
    try:
        shutil.copytree(made, place, symlinks=True)
    except OSError as error:  # shutil.Error is one, too: for a pipe, for example
        shutil.rmtree(place, ignore_errors=True)
        raise Failed(
            f"{package.name} isn't installed: it can't be copied to {place}: {printable(str(error))}"
        ) from None


def _check_tools(package: Package) -> None:
    if package.kind == "npm" and (shutil.which("npm") is None or shutil.which("node") is None):
        raise Failed("npx needs Node.js: install node and npm, and try again")
    if package.kind == "pip" and importlib.util.find_spec("pip") is None:
        raise Failed(f"{sys.executable} has no pip, which installs the package: run `{sys.executable} -m ensurepip`")


def _run(client: AgentOSClient, server: str, package: Package, workspace: str) -> None:
    """Run the installation in a jail, and wait until it has ended."""
    words = [NPM_SCRIPT, "sh", package.spec]
    if package.kind == "pip":
        words = [PIP_SCRIPT, "sh", sys.executable, package.spec, *package.beside]
    variables = {name: value for name, value in os.environ.items() if name in REGISTRY_VARIABLES[package.kind]}
    name = f"mcp-install.{server}"
    spawned = client.spawn(
        name=name,
        command=["/bin/sh", "-c", *words],
        workspace=workspace,
        cwd="/workspace",
        env={**variables, "no_proxy": "", "NO_PROXY": ""},
        network="filtered",
        limits=LIMITS,
        permissions={"level": "minimal", "allow": {"domains": list(find_domains(package.kind, os.environ))}},
        restart="temporary",
    )
    if not spawned["success"] and spawned.get("exit_code") is None:
        raise Failed(f"{package.spec} isn't installed: {spawned['error']}", spawned)
    end = check_reply(client.wait(name, timeout=INSTALL_SECONDS)) if spawned["success"] else spawned
    if end.get("exit_code") != 0:
        lines = client.logs(name, tail=SHOWN_LINES)["lines"]
        output = "\n".join(printable(line["text"]) for line in lines)
        raise Failed(f"{package.spec} isn't installed; {package.kind} says:\n{output}")


REGISTRY_VARIABLES: Final = {
    "npm": ("npm_config_registry", "NPM_CONFIG_REGISTRY"),
    "pip": ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST"),
}
"""The variables by which an operator names another registry; nothing else of this environment gets into the jail."""


def find_domains(kind: str, environment: Mapping[str, str]) -> Iterator[str]:
    """The rules for the hosts of the registry, which is the public one unless the environment names another."""
    urls = [
        url
        for name in REGISTRY_VARIABLES[kind]
        if name != "PIP_TRUSTED_HOST"
        for url in environment.get(name, "").split()
    ]
    if kind == "npm" and not urls:
        yield "registry.npmjs.org"
    elif kind == "pip" and "PIP_INDEX_URL" not in environment:
        yield from ("pypi.org", "files.pythonhosted.org")
    for url in urls:
        yield from _rules_for(url)


def _rules_for(url: str) -> Iterator[str]:
    """The rules for a registry of the operator's own, which may have an address that no name alone opens."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"https": 443, "http": 80}[parts.scheme]
        found = {str(each[4][0]) for each in socket.getaddrinfo(parts.hostname, port, proto=socket.IPPROTO_TCP)}
    except (ValueError, KeyError):
        raise Failed(f"the registry {printable(url)}: expected http://HOST/... or https://HOST/...") from None
    except OSError as error:
        raise Failed(f"the registry {printable(url)}: {error.strerror}") from None
    yield f"{parts.hostname}:{port}"
    for address in sorted(found):
        if not ipaddress.ip_address(address).is_global and address != parts.hostname:
            yield f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


# -- What was installed ------------------------------------------------------------------------------------------------


def find_command(package: Package, directory: Path) -> Sequence[str]:
    """The command that runs the server in a jail that has ``directory`` as its code. Raises ``Failed``."""
    if package.kind == "npm":
        return ["node", f"{CODE}/{_find_script(package, directory)}", *package.args]
    found = f"bin/{package.program}"
    if not PIP_NAME.fullmatch(package.program or "") or not _is_inside(directory, found):
        ours = re.compile(r"python[0-9.]*|pip[0-9.]*|activate.*|Activate.*")
        others = sorted(each.name for each in (directory / "bin").iterdir() if not ours.fullmatch(each.name))
        names = ", ".join(map(printable, others))
        known = f"name one with --from {package.name}: {names}" if names else "nor any other"
        raise Failed(f"{package.name} has no command {package.program}: {known}")
    # bin/python is a link, which env follows in the jail. env has a path, as -e PATH=... may leave out where it is.
    return ["/usr/bin/env", f"{CODE}/bin/python", f"{CODE}/{found}", *package.args]


def _find_script(package: Package, directory: Path) -> str:
    """The path of the package's program, as npx chooses it: the only one, or that of the package's name."""
    base = f"node_modules/{package.name}"
    if not _is_inside(directory, f"{base}/package.json"):
        raise Failed(f"{package.name} has no package.json: it is no package of npm's")
    with (directory / base / "package.json").open("rb") as file:
        try:
            manifest: Any = json.loads(file.read(MAX_MANIFEST))
        except (ValueError, RecursionError):
            raise Failed(f"{package.name}: its package.json is not JSON") from None
    programs = manifest.get("bin") if isinstance(manifest, dict) else None
    own = package.name.rpartition("/")[2]
    if isinstance(programs, str):
        programs = {own: programs}
    if not isinstance(programs, dict) or not programs:
        raise Failed(f"{package.name} has no command: it is no server that npx can run")
    wanted = package.program or (own if own in programs or len(programs) > 1 else next(iter(programs)))
    if not isinstance(script := programs.get(wanted), str):
        known = ", ".join(printable(str(each)) for each in programs)
        raise Failed(f"{package.name} has no command {wanted}: name one with -p {package.name}: {known}")
    path = os.path.normpath(os.path.join(base, script))
    if not _is_inside(directory, path):
        raise Failed(f"{package.name}: its command {wanted} leads to {printable(script)}, which it doesn't have")
    return path


def _is_inside(directory: Path, path: str) -> bool:
    """Whether it is a file below the directory, wherever symbolic links lead."""
    real = os.path.realpath(directory / path)
    return os.path.isfile(real) and real.startswith(f"{os.path.realpath(directory)}/")
