"""Several providers, aliases and limits of models in a configuration file: tables beneath ``[llm]``."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from attrs import frozen

from agentos.config.reader import Reader, ReadTable
from agentos.llm.models.routes import find_provider, is_pattern
from agentos.llm.queue.request import MODEL_NAME
from agentos.llm.settings import ModelLimits, ProviderName, ProviderSettings, is_url
from agentos_sdk.encoding.codec import Rule

from .secrets import SOURCE

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
MODEL_PATTERN = re.compile(r"[A-Za-z0-9*?][A-Za-z0-9._:/@+*?-]{0,199}")
Url = Annotated[str, Rule(is_url, "an http:// or https:// URL, without a user and a password")]


@frozen(kw_only=True)
class ProviderTable:
    """``[llm.providers.NAME]``: see ``agentos.llm.settings.ProviderSettings``."""

    type: ProviderName | None = None
    base_url: Url | None = None
    keys: Annotated[Sequence[str], Rule(len, "at least one key")] | None = None
    models: Annotated[Sequence[str], Rule(len, "at least one model or pattern")] | None = None
    concurrency: Annotated[int, Rule(lambda number: 1 <= number <= 1000, "a number from 1 to 1000")] | None = None
    prompt_caching: bool | None = None


def read_routes(reader: Reader, read: ReadTable) -> dict[str, Any]:
    """The fields of ``LLMSettings`` that say which models there are; ``read`` is the table ``[llm]``."""
    providers = {name: _read_provider(reader, name, data) for name, data in read.table.providers.items()}
    usable = {name: provider for name, provider in providers.items() if provider is not None}
    aliases = _Aliases(reader, usable).read(read.table.aliases)
    limits = {}
    for model, data in read.table.limits.items():
        if is_pattern(model) or model in aliases:
            what = "a pattern" if is_pattern(model) else "an alias"
            reader.mistakes.append((("llm", "limits", model), f"expected a model's name, which this isn't: {what}"))
        limits[model] = reader.read(ModelLimits, data, ("llm", "limits", model)).table
    if providers:
        for name in ("provider", "base_url"):
            if getattr(read.table, name) is not None:
                reader.add_mistake(read, "[llm.providers] stands instead of it: each provider has its own", name)
        model = read.table.model
        if model is None:
            if "model" not in read.invalid:
                missing = "required beside [llm.providers]: the model or alias for questions that name none"
                reader.add_mistake(read, missing, "model")
        elif len(usable) == len(providers) and model not in read.table.aliases and not find_provider(usable, model):
            reader.add_mistake(read, _describe_unrouted(model), "model")
    return {"providers": usable, "aliases": aliases, "limits": limits}


def _read_provider(reader: Reader, name: str, data: object) -> ProviderSettings | None:
    """One provider; None if it has no valid type."""
    read = reader.read(ProviderTable, data, ("llm", "providers", name))
    table: ProviderTable = read.table
    if not NAME.fullmatch(name):
        reader.add_mistake(read, "expected a name of up to 64 letters, digits, '_', '-' and '.'")
    if table.type is None:
        if "type" not in read.invalid and isinstance(data, dict):
            reader.add_mistake(read, "required field missing", "type")
        return None
    made = read.present_fields()
    made["keys"] = tuple(_read_key(reader, read, index, text) for index, text in enumerate(table.keys or ()))
    for index, model in enumerate(table.models or ()):
        if not MODEL_PATTERN.fullmatch(model):
            message = f"expected the name of a model, with * and ? in a pattern, got {model[:80]!r}"
            reader.add_mistake(read, message, "models", index)
    if table.type == "offline":
        for key in ("base_url", "keys"):
            if getattr(table, key) is not None:
                reader.add_mistake(read, "a provider of type offline has none: leave it out", key)
    if table.type != "anthropic" and table.prompt_caching is not None:
        reader.add_mistake(read, "a provider of type anthropic has it, no other: leave it out", "prompt_caching")
    return ProviderSettings(**made)


def _read_key(reader: Reader, read: ReadTable, index: int, text: str) -> str:
    """Where a key is, with an absolute path; empty if that is wrong. The text may be the key itself: it isn't shown."""
    parts = SOURCE.fullmatch(text)
    if parts is None:
        reader.add_mistake(read, "expected where the key is, as 'env:NAME' or 'file:PATH'", "keys", index)
        return ""
    return f"file:{reader.resolve_path(parts['path'])}" if parts["path"] else text


class _Aliases:
    """Reads aliases; one may name others, which are replaced by their models."""

    def __init__(self, reader: Reader, providers: Mapping[str, ProviderSettings]) -> None:
        self._reader, self._providers = reader, providers
        self._targets: dict[str, Sequence[str]] = {}

    def read(self, table: Mapping[str, object]) -> Mapping[str, Sequence[str]]:
        for name, given in table.items():
            if not MODEL_PATTERN.fullmatch(name):
                self._report("expected a name such as a model's, with * and ? in a pattern", name)
            targets = [given] if isinstance(given, str) else given
            if not isinstance(targets, list) or not targets or not all(isinstance(each, str) for each in targets):
                self._report('expected a model, or a list of models: "fast" or ["model-a", "model-b"]', name)
                continue
            self._targets[name] = targets
        return {name: self._expand(name) for name in self._targets}

    def _expand(self, name: str) -> Sequence[str]:
        """The models of an alias, each once, in order."""
        models: dict[str, None] = {}
        for index, target in enumerate(self._targets[name]):
            try:
                found = self._models(target, (name,))
            except ValueError as error:
                self._report(str(error), name, index)
                continue
            models |= dict.fromkeys(found)
        return tuple(models)

    def _models(self, target: str, within: tuple[str, ...]) -> Sequence[str]:
        """The models that a target stands for; raises ``ValueError``."""
        if target in within:
            raise ValueError(f"an alias can't lead to itself: {' → '.join((*within, target))}")
        if target in self._targets and not is_pattern(target):
            return [model for each in self._targets[target] for model in self._models(each, (*within, target))]
        if not MODEL_NAME.fullmatch(target):
            raise ValueError(f"expected the name of a model or of an alias, got {target[:80]!r}")
        if self._providers and find_provider(self._providers, target) is None:
            raise ValueError(_describe_unrouted(target))
        return [target]

    def _report(self, message: str, name: str, index: int | None = None) -> None:
        keys = ("llm", "aliases", name) if index is None else ("llm", "aliases", name, index)
        self._reader.mistakes.append((keys, message))


def _describe_unrouted(model: str) -> str:
    return f"no provider has {model!r}: add it to the models of one in [llm.providers]"
