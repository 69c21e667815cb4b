"""How often a test tries: profile ``ci`` of Hypothesis repeats itself exactly, ``night`` is random and tries more."""

from hypothesis import HealthCheck, settings

NIGHT = 10  # times as many rounds


def register_profiles() -> None:
    """Load ``ci``, whatever Hypothesis would choose by $CI; pytest's ``--hypothesis-profile`` is read later."""
    slow = [HealthCheck.too_slow]
    settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True, suppress_health_check=slow)
    settings.register_profile(
        "night", deadline=None, print_blob=True, suppress_health_check=slow, max_examples=100 * NIGHT
    )
    settings.load_profile("ci")


def rounds(count: int) -> int:
    """``count``, or many times that at night."""
    return count * NIGHT if settings.get_current_profile_name() == "night" else count
