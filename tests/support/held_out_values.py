"""A second labelled set that no pattern was tuned on: another seed, other surroundings, other words before
a telephone number. What it teaches belongs into the first set, and then this one needs a new seed."""

from __future__ import annotations

import json

from tests.support.private_values import Maker, Sample

PHONE_LEADS = (
    "Best number to reach him:", "her phone:", "mobile no", "Rufnummer Telefon", "téléphone portable",
    "teléfono móvil", "please call", "office line", "Tel:", "SMS to", "cell phone", "emergency phone",
    "kontakt telefon", "WhatsApp me:", "fax no",
)  # fmt: skip
SEED = 918_273


class HeldOut(Maker):
    """The same kinds of values, put elsewhere."""

    def __init__(self, seed: int = SEED) -> None:
        super().__init__(seed)

    def framed(self, kind: str, value: str, lead: str = "", group: str = "") -> Sample:
        if kind == "PHONE" and lead:
            lead = self.random.choice(PHONE_LEADS)
        said = f"{lead} {value}".strip()
        word, name = self.prose.sentence(), self.prose.last_name()
        frames = (
            f"Hi team,\n\nper our chat: {said}\n\nThanks, {name}",
            f"| field | value |\n|---|---|\n| x | {said} |\n",
            f"INSERT INTO t VALUES (7, '{said}', NOW());",
            f'2026-11-30T09:13:22Z INFO svc.handler msg="{said}" took=13ms',
            f"- {word}\n- {said}\n- {name}",
            f"<p>{word} <b>{said}</b></p>",
            f'name,note\n{name},"{said}"\n',
        )
        number = self.random.randrange(len(frames) + 1)
        if number < len(frames):
            return Sample(frames[number], ((kind, value),), group)
        text = json.dumps([{"role": "user", "content": f"{word} {said}"}], ensure_ascii=False)
        return Sample(text, ((kind, json.dumps(value, ensure_ascii=False)[1:-1]),), group)
