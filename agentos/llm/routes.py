"""Routes of questions: which models a name stands for, and which provider each model has.

A name is, in this order: an alias, a model that a provider lists by its name, an alias that is a pattern, a model that
matches a pattern of a provider. Of several patterns, as of several providers, the first one in the file counts.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase

from .settings import ProviderSettings


def is_pattern(name: str) -> bool:
    """Whether a name in the configuration stands for several: ``*`` is any characters, ``?`` one."""
    return "*" in name or "?" in name


def find_provider(providers: Mapping[str, ProviderSettings], model: str) -> str | None:
    """The name of the provider of a model: one that lists it by its name goes before one whose pattern matches."""
    listed = (name for name, each in providers.items() if model in each.models)
    matching = (name for name, each in providers.items() if any(fnmatchcase(model, one) for one in each.models))
    return next(listed, None) or next(matching, None)
