from hypothesis import given
from hypothesis import strategies as st

from agentos.sandbox import steps as s
from agentos.sandbox.encoded_steps import decode, encode

text = st.text(max_size=20)
pairs = st.lists(st.tuples(text, st.integers())).map(tuple)
some_step = st.one_of(
    st.builds(s.Clone, st.integers(), text, text, st.booleans()),
    st.builds(s.UnshareCgroup),
    st.builds(s.Bind, text, text, st.booleans(), st.booleans()),
    st.builds(s.SetLimits, pairs),
    st.builds(s.Landlock, text, pairs),
    st.builds(s.Execute, st.lists(text, min_size=1).map(tuple), st.lists(st.tuples(text, text)).map(tuple), text),
)


@given(st.lists(some_step).map(tuple))
def test_steps_arrive_as_they_were_sent(steps: tuple[s.Step, ...]) -> None:
    arrived = decode(encode(steps))

    assert arrived == steps
    assert [type(step) for step in arrived] == [type(step) for step in steps]


def test_every_kind_of_step_can_be_sent() -> None:
    assert set(s.KINDS) == {
        kind for kind in vars(s).values() if isinstance(kind, type) and issubclass(kind, tuple) and kind is not tuple
    }


def test_a_step_is_described_by_what_it_is_about() -> None:
    assert s.describe(s.Bind("/usr", "/usr")) == "Bind /usr"
    assert s.describe(s.Bind("/a", "/agent")) == "Bind /a at /agent"
    assert s.describe(s.Execute(("/bin/true", "-x"), (), "/")) == "Execute /bin/true"
    assert s.describe(s.SwitchRoot()) == "SwitchRoot"
