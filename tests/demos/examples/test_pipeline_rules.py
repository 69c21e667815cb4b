"""The pipeline's own arithmetic: parser, reasoner and verifier, without a kernel."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demos.pipeline.parser import parse
from demos.pipeline.reasoner import careful, quick
from demos.pipeline.verifier import go_back

NUMBERS = st.integers(1, 999).map(str)
PRODUCTS = st.lists(NUMBERS, min_size=1, max_size=3).flatmap(
    lambda numbers: st.lists(st.sampled_from([" * ", " / "]), min_size=3, max_size=3).map(
        lambda signs: numbers[0] + "".join(sign + number for sign, number in zip(signs, numbers[1:], strict=False))
    )
)


@st.composite
def expressions(draw: st.DrawFn) -> str:
    """What the parser could make of a text: sums of products, in brackets where the whole is divided."""
    expression = draw(PRODUCTS)
    for sign, term in draw(st.lists(st.tuples(st.sampled_from("+-"), PRODUCTS), max_size=3)):
        expression += f" {sign} {term}"
    divisor = draw(st.none() | NUMBERS)
    return expression if divisor is None else f"({expression}) / {divisor}"


@given(expressions())
def test_the_way_back_from_a_careful_answer_leads_to_the_first_number(expression: str) -> None:
    assert go_back(expression, str(careful(expression)))[0]


@given(expressions(), st.fractions())
def test_no_other_answer_is_verified(expression: str, answer: Fraction) -> None:
    assert go_back(expression, str(answer))[0] == (answer == careful(expression))


def test_the_quick_way_is_wrong_where_a_product_stands_after_a_sum() -> None:
    assert quick("3 * 12 - 7") == careful("3 * 12 - 7")
    assert quick("3 * 12 + 2 * 4") != careful("3 * 12 + 2 * 4") == 44


def test_careful_takes_nothing_but_arithmetic() -> None:
    with pytest.raises(ValueError, match="no arithmetic"):
        careful("print(1)")


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("Eve has 20 eggs, sells 5 and sells 3. How many has she?", "20 - 5 - 3"),
        ("There are 12 nuts, 30 more are found, shared equally among 6.", "(12 + 30) / 6"),
        ("How old is the captain?", ""),
    ],
)
def test_the_parser_follows_its_rules_on_other_texts_too(text: str, expression: str) -> None:
    assert parse(text) == expression
