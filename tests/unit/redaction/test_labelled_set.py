"""How much is found, and how much of what is found is right, on the labelled set, by kind."""

from __future__ import annotations

import json

import pytest

from sidecar.redaction.engine import Redactor
from tests.support.held_out_values import HeldOut
from tests.support.private_values import COUNTRIES, Maker, Score, missed, scores


@pytest.fixture(scope="module")
def redactor() -> Redactor:
    return Redactor()


@pytest.fixture(scope="module", params=[Maker, HeldOut], ids=["tuned on", "held out"])
def measured(redactor: Redactor, request: pytest.FixtureRequest) -> tuple[dict[str, Score], dict[str, Score]]:
    maker: Maker = request.param()
    positives, negatives = maker.positives(), maker.negatives()
    assert len(positives) >= 400
    assert len(negatives) >= 400
    return scores([*positives, *negatives], redactor)


def test_recall_of_every_kind(measured: tuple[dict[str, Score], dict[str, Score]]) -> None:
    by_kind, _ = measured
    low = {kind: score.recall for kind, score in by_kind.items() if score.recall < 0.98}
    assert not low
    assert len([k for k, s in by_kind.items() if s.values >= 20]) >= 13


def test_precision_of_every_kind(measured: tuple[dict[str, Score], dict[str, Score]]) -> None:
    by_kind, _ = measured
    assert not {kind: score.precision for kind, score in by_kind.items() if score.precision < 0.97}


def test_phones_of_many_countries(measured: tuple[dict[str, Score], dict[str, Score]]) -> None:
    _, by_country = measured
    assert len(by_country) == len(COUNTRIES) >= 20
    assert not {country: s.recall for country, s in by_country.items() if s.recall < 0.9}


def test_another_seed_fares_the_same(redactor: Redactor) -> None:
    maker = Maker(7)
    by_kind, _ = scores([*maker.positives(), *maker.negatives()], redactor)
    wrong = [w[:2] for w in missed(maker.negatives(), redactor)]
    assert not {kind for kind, s in by_kind.items() if s.recall < 0.98 or s.precision < 0.97}, wrong


def test_what_is_left_of_json_is_json(redactor: Redactor) -> None:
    samples = [s for s in Maker(3).positives() if s.text.startswith('{"id"')]
    assert len(samples) > 50
    for sample in samples:
        assert json.loads(redactor.text(sample.text))["id"] == 17
