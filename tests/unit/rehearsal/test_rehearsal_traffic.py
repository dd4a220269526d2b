from __future__ import annotations

import pytest

from loadgen.commands.rehearse import read_traffic
from sidecar.errors import UserError


def test_a_series_is_read_with_and_without_a_header() -> None:
    assert read_traffic("second,rate\n0,5\n60,7.5\n", "t") == [(0.0, 5.0), (60.0, 7.5)]
    assert read_traffic("0, 5\n\n60, 7.5", "t") == [(0.0, 5.0), (60.0, 7.5)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "at least two lines"),
        ("0,1\n", "at least two lines"),
        ("0,0\n60,0\n", "at least two lines"),
        ("0,1\nx,2\n", "line 2: expected second,rate"),
        ("0,1\n60\n", "line 2: expected second,rate"),
        ("0,1\n0,2\n", "line 2: the seconds must rise"),
        ("0,1\n60,-2\n", "line 2: second and rate"),
        ("0,1\n60,nan\n", "line 2: second and rate"),
        ("0,1\n9999999999,1\n", "more than 31 days"),
    ],
)
def test_what_is_no_series_is_named(text: str, said: str) -> None:
    with pytest.raises(UserError, match=f"^t.csv: {said}"):
        read_traffic(text, "t.csv")
