"""Records behave like classes of ``attrs.frozen(kw_only=True)``."""

import copy
import pickle

import attrs
import pytest
from attrs import field

from agentos_sdk.encoding.record import record


@record
class Point:
    x: int
    secret: str = field(default="s", repr=False)


@record
class Other:
    x: int
    secret: str = "s"


def test_records_are_equal_by_their_class_and_fields() -> None:
    assert Point(x=1) == Point(x=1)
    assert hash(Point(x=1)) == hash(Point(x=1))
    assert Point(x=1) != Point(x=2)
    assert Point(x=1) != Other(x=1)  # type: ignore[comparison-overlap]


def test_a_record_shows_the_fields_that_are_not_hidden() -> None:
    assert repr(Point(x=1)) == "Point(x=1)"


def test_a_record_is_frozen_and_takes_keywords_only() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Point(x=1).x = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        Point(1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        object.__setattr__(Point(x=1), "y", 2)


def test_a_record_can_be_copied_and_pickled() -> None:
    assert copy.copy(Point(x=1)) == Point(x=1)
    assert pickle.loads(pickle.dumps(Point(x=1, secret="t"))) == Point(x=1, secret="t")
