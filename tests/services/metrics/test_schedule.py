from agentos.services.metrics.schedule import Schedule


def test_watched_agents_are_due_each_second_for_ten_seconds_and_all_every_five() -> None:
    schedule, now, due = Schedule(), 100.0, {}
    while now < 122:
        due[now] = schedule.take_due(now)
        if now == 101:
            schedule.watch([7], now)
        now = schedule.next_look(now)

    assert [at for at, agents in due.items() if agents is None] == [100, 105, 110, 115, 120]
    assert [at for at, agents in due.items() if agents == (7,)] == [102, 103, 104, 106, 107, 108, 109]
    assert [at for at, agents in due.items() if agents == ()] == [101, 111, 112, 113, 114, 116, 117, 118, 119, 121]


def test_a_round_that_took_long_is_followed_by_the_next_one_at_once() -> None:
    schedule = Schedule()
    schedule.take_due(100)

    assert schedule.next_look(100) == 101
    assert schedule.take_due(130) is None
