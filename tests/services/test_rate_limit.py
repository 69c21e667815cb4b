from agentos.services.rate_limit import Rate


def test_a_burst_is_let_through_and_then_the_rate_holds() -> None:
    rate = Rate(per_second=10, burst=3)

    assert [rate.wait(100.0) for _ in range(3)] == [0, 0, 0]
    assert abs(rate.wait(100.0) - 0.1) < 1e-9


def test_a_refusal_costs_nothing() -> None:
    rate = Rate(per_second=1, burst=1)
    assert rate.wait(0.0) == 0
    for _ in range(5):
        assert rate.wait(0.5) == 0.5

    assert rate.wait(1.0) == 0
