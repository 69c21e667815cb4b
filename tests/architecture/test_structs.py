"""Structs that threads may decode are known to msgspec before there are threads: see agentos/structs.py."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLAIN = frozenset({"list", "dict", "str", "float", "int", "Any"})


def names_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def find_decoded(tree: ast.Module) -> Iterator[ast.expr]:
    """The types of ``msgspec.json.decode`` and ``msgspec.convert``."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        if call.func.attr == "decode":
            yield from (word.value for word in call.keywords if word.arg == "type")
        elif call.func.attr == "convert" and ast.unparse(call.func.value) == "msgspec":
            yield call.args[1]


def find_unlearned(source: str) -> set[str]:
    """What a module decodes and doesn't learn at its top. A type that is given to a function isn't looked at."""
    if ".decode(" not in source and "msgspec.convert(" not in source:
        return set()  # before it is parsed, which costs most
    tree = ast.parse(source)
    learned = set[str]()
    for statement in tree.body:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "learn":
            learned |= names_in(call)
    given = {argument.arg for each in ast.walk(tree) if isinstance(each, ast.arguments) for argument in each.args}
    return {name for each in find_decoded(tree) for name in names_in(each)} - learned - given - PLAIN


def test_each_struct_that_is_decoded_in_a_function_was_learned_before() -> None:
    found = {
        str(path.relative_to(ROOT)): unlearned
        for path in sorted((ROOT / "agentos").rglob("*.py"))
        if (unlearned := find_unlearned(path.read_text()))
    }

    assert not found


def test_one_that_was_not_is_found() -> None:
    source = "import msgspec\nclass A: ...\ndef read(data, kind):\n  "
    for call in ("msgspec.json.decode(data, type=list[A])", "msgspec.convert(data, A)"):
        assert find_unlearned(f"{source}return {call}\n") == {"A"}
        assert not find_unlearned(f"from agentos.structs import learn\n{source}return {call}\nlearn(A)\n")
    assert not find_unlearned(f"{source}return msgspec.json.decode(data, type=kind)\n")
