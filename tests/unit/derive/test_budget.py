"""Error budgets and burn rates."""

from __future__ import annotations

import math

import pytest

from sidecar.derive.budget import PAIRS, ErrorBudget, budget_left, burn_rate, capped


def test_burn_is_one_when_just_the_budget_is_used() -> None:
    assert burn_rate(99, 100, 0.99) == pytest.approx(1.0)
    assert burn_rate(0, 100, 0.99) == pytest.approx(100.0)
    assert burn_rate(100, 100, 0.99) == 0.0


def test_nothing_or_too_little_eligible_burns_nothing_knowable() -> None:
    assert burn_rate(0, 0, 0.99) is None
    assert burn_rate(3, 5, 0.99, min_eligible=20) is None
    assert budget_left(0, 0, 0.99) is None


def test_thresholds_stay_within_reach() -> None:
    assert capped(14.4, 0.9) == pytest.approx(9.0)  # burn cannot pass 10 at 90 %
    assert capped(14.4, 0.99) == 14.4
    assert capped(1.0, 0.5) == 1.0


def test_budget_goes_negative_when_overdrawn() -> None:
    assert budget_left(98, 100, 0.99) == pytest.approx(-1.0)
    assert budget_left(100, 100, 0.99) == 1.0


def test_a_page_needs_both_windows() -> None:
    budget = ErrorBudget(0.99)
    for minute in range(60):  # an hour in which a third fails
        budget.add(minute * 60, 20, 30)
    assert [pair.severity for pair in budget.firing(3599)] == [p.severity for p in PAIRS]
    for minute in range(60, 70):  # ten good minutes: the short window is quiet again
        budget.add(minute * 60, 30, 30)
    assert budget.burn(4199, "5m") == 0.0
    long = budget.burn(4199, "1h")
    assert long is not None
    assert long > 14.4
    assert "1h" not in [pair.long for pair in budget.firing(4199)]


def test_old_events_leave_and_memory_stays_bounded() -> None:
    budget = ErrorBudget(0.999)
    for hour in range(24 * 40):
        budget.add(hour * 3600, 1, 1)
    good, eligible = budget.events(24 * 40 * 3600 - 1, 30 * 86400)
    assert good == eligible
    assert math.isclose(eligible, 24 * 30, abs_tol=6)
    assert budget.events(24 * 60 * 3600, 3600) == (0, 0)


def test_an_objective_must_leave_a_budget() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        ErrorBudget(1.0)
