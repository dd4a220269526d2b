"""The soak and fault suite in its short form; ``python -m tests.soak`` runs the long one."""

from __future__ import annotations

import pytest

from tests.soak.run import HEAD, soak
from tests.soak.slope import slope_of

# One of each kind; the others take longer, and `python -m tests.soak` has them all.
FAULTS = (
    "engine killed,stands still,answers 500,cuts,cut in the middle,collector down,exporter,hour ahead,"
    "read slowly,for spans,SIGTERM,reloaded"
)


@pytest.mark.timeout(900)
async def test_faults_under_traffic_and_held_load() -> None:
    said: list[str] = []
    lines, held = await soak(minutes=0.2, idle=200, hold_s=0.7, say=said.append, only=FAULTS)
    table = "\n".join(said)
    assert [line.what for line in lines if line.wrong] == [], table
    assert sum(line.lost for line in lines) == 0
    assert held is not None
    assert held.wrong == "", table
    assert said[0] == HEAD


def test_a_slope_is_told_from_noise() -> None:
    steady = [(float(x), 100.0 + (x % 3)) for x in range(60)]
    rising = [(x, y + 0.2 * x) for x, y in steady]
    assert slope_of(steady).flat(span_s=60, tolerance=0.5)
    assert not slope_of(rising).flat(span_s=60, tolerance=4.0)
    assert slope_of(rising).flat(span_s=60, tolerance=20.0)
    assert slope_of(rising).per_s == pytest.approx(0.2, abs=0.01)
    for points in ([], [(0.0, 1.0)] * 5):
        with pytest.raises(ValueError):
            slope_of(points)
