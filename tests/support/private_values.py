"""A labelled set made of seeded generators: private values of every kind among prose, chat, JSON and code,
and hard negatives that only look like some.

Nobody's data: numbers are drawn at random and kept where their check digit is right.
"""

from __future__ import annotations

import base64
import json
import random
import string
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module

import phonenumbers
from faker import Faker
from phonenumbers import PhoneNumberFormat, PhoneNumberType

from sidecar.redaction.engine import Hit, Redactor
from sidecar.redaction.numbers import luhn

COUNTRIES = (
    "US", "GB", "DE", "FR", "ES", "IT", "NL", "BE", "CH", "AT", "PL", "SE", "NO", "DK", "FI", "PT", "IE",
    "IN", "AU", "NZ", "BR", "MX", "JP", "ZA", "KR", "CN", "TR", "GR", "CZ", "HU", "RO", "SG", "IL", "AR",
    "UA", "EG", "NG", "PH", "ID", "MY", "TH", "VN", "CL", "CO", "PE", "SA", "AE", "KE", "PK", "CA",
)  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """A text and what in it is private: (kind, value). ``group``: the country of a phone."""

    text: str
    values: tuple[tuple[str, str], ...] = ()
    group: str = ""


@dataclass(frozen=True)
class Score:
    """Of one kind: how many values there were and were covered whole, how many hits and were right."""

    values: int
    covered: int
    hits: int
    right: int

    @property
    def recall(self) -> float:
        return self.covered / self.values if self.values else 1.0

    @property
    def precision(self) -> float:
        return self.right / self.hits if self.hits else 1.0


class Maker:
    """All samples of one seed."""

    def __init__(self, seed: int = 20_261_201) -> None:
        self.random = random.Random(seed)
        self.faker = Faker(["en_US", "en_GB", "de_DE", "fr_FR", "es_ES", "it_IT", "nl_NL", "pl_PL", "pt_BR"])
        Faker.seed(seed)
        self.prose = Faker("en_US")

    def digits(self, count: int) -> str:
        return "".join(self.random.choice(string.digits) for _ in range(count))

    def letters(self, count: int, alphabet: str = string.ascii_letters + string.digits) -> str:
        return "".join(self.random.choice(alphabet) for _ in range(count))

    def framed(self, kind: str, value: str, lead: str = "", group: str = "") -> Sample:
        """``value`` put into one of four surroundings; ``lead`` are words that must stand before it."""
        frame = self.random.randrange(4)
        before, after = self.prose.sentence(), self.prose.sentence()
        said = f"{lead} {value}".strip() if lead else value
        if frame == 0:
            text = f"{before} {said}{self.random.choice(['.', ',', ';', ' -', ''])} {after}"
        elif frame == 1:
            text = f"user: {before}\n{said}\nassistant: {after}"
        elif frame == 2:
            text = json.dumps({"id": 17, "note": f"{before} {said} {after}", "ok": True}, ensure_ascii=False)
            value = json.dumps(value, ensure_ascii=False)[1:-1]
        else:
            text = f'def load():\n    field = "{said}"  # {before}\n    return field\n'
        return Sample(text, ((kind, value),), group)

    def emails(self, count: int) -> Iterable[Sample]:
        tricks: list[Callable[[str], str]] = [
            lambda v: v.replace("@", "＠"),
            lambda v: v.replace("a", "а", 1).replace("e", "е", 1),
            lambda v: v[:2] + "\u200b" + v[2:],
            lambda v: v.replace(".", "．"),
            lambda v: v.replace("@", "\\u0040"),
            lambda v: v.replace("@", " [at] ").replace(".", " [dot] "),
        ]
        for number in range(count):
            value = self.faker.email() if number % 3 else self.faker.free_email()
            if number % 7 == 0:
                name, _, host = value.partition("@")
                value = f"{name}+{self.letters(4, string.ascii_lowercase)}@mail.{host}"
            if number % 5 == 4:
                trick = tricks[(number // 5) % len(tricks)]
                value = trick(value)
                if "\\u0040" in value:
                    yield Sample(f'{{"to": "{value}"}}', (("EMAIL", value),))
                    continue
            yield self.framed("EMAIL", value)

    def phones(self) -> Iterable[Sample]:
        for region in COUNTRIES:
            for kind in (PhoneNumberType.MOBILE, PhoneNumberType.FIXED_LINE):
                example = phonenumbers.example_number_for_type(region, kind)
                if example is None:
                    continue
                number = self._varied(example)
                styles = [PhoneNumberFormat.INTERNATIONAL, PhoneNumberFormat.E164]
                for style in styles:
                    written = phonenumbers.format_number(number, style)
                    yield self.framed("PHONE", written, group=region)
                if COUNTRIES.index(region) < 34:  # the default regions: national forms too
                    written = phonenumbers.format_number(number, PhoneNumberFormat.NATIONAL)
                    lead = self.random.choice(["Call me:", "phone", "Tel.", "mobile:", "my number is"])
                    yield self.framed("PHONE", written, lead, group=region)
        for pattern in ("(%s) %s-%s", "%s-%s-%s", "%s.%s.%s", "+1 %s %s %s", "+1-%s-%s-%s", "1-%s-%s-%s"):
            for _ in range(3):
                area = self.random.choice(["202", "212", "415", "617", "312"])
                yield self.framed("PHONE", pattern % (area, "555", f"01{self.digits(2)}"), group="US")

    def _varied(self, example: phonenumbers.PhoneNumber) -> phonenumbers.PhoneNumber:
        for _ in range(50):
            number = phonenumbers.PhoneNumber()
            number.merge_from(example)
            step = self.random.randrange(1, 1000)
            base = example.national_number or 0
            number.national_number = base - base % 1000 + step
            if phonenumbers.is_valid_number(number):
                return number
        return example

    def cards(self, count: int) -> Iterable[Sample]:
        for number in range(count):
            prefix, length = self.random.choice(
                [
                    ("4", 16),
                    ("51", 16),
                    ("55", 16),
                    ("2221", 16),
                    ("34", 15),
                    ("37", 15),
                    ("6011", 16),
                    ("3528", 16),
                ]
            )
            body = prefix + self.digits(length - len(prefix) - 1)
            whole = next(body + d for d in string.digits if luhn(body + d))
            separator = ["", " ", "-", "\u00a0", "–", " "][number % 6]
            cuts = (4, 10) if length == 15 else (4, 8, 12)
            groups = [whole[a:b] for a, b in zip((0, *cuts), (*cuts, length), strict=True)]
            value = separator.join(groups)
            if number % 11 == 0:
                value = value.translate({ord(d): chr(0xFF10 + int(d)) for d in string.digits})
            yield self.framed("CARD", value)

    def ibans(self, count: int) -> Iterable[Sample]:
        makers = [
            Faker(code) for code in ("de_DE", "fr_FR", "en_GB", "es_ES", "it_IT", "nl_NL", "pl_PL", "de_AT")
        ]
        for number in range(count):
            value = makers[number % len(makers)].iban()
            if number % 2:
                value = " ".join(value[i : i + 4] for i in range(0, len(value), 4))
            yield self.framed("IBAN", value)

    def national(self, each: int) -> Iterable[Sample]:
        shapes = [
            ("us.ssn", "###-##-####", ""),
            ("us.ssn", "#########", "SSN:"),
            ("br.cpf", "###.###.###-##", ""),
            ("br.cpf", "###########", "CPF"),
            ("be.nn", "YY.MM.DD-###.##", ""),
            ("ch.ssn", "756.####.####.##", ""),
            ("es.dni", "########L", ""),
            ("es.nie", "X#######L", ""),
            ("it.codicefiscale", "LLLLLLYYLDDL###L", ""),
            ("nl.bsn", "#########", "BSN"),
            ("pl.pesel", "YYMMDD#####", "PESEL:"),
            ("dk.cpr", "DDMMYY-####", "CPR"),
            ("no.fodselsnummer", "DDMMYY#####", "fødselsnummer"),
            ("fi.hetu", "DDMMYY-###L", ""),
            ("in_.aadhaar", "#### #### ####", ""),
            ("ca.sin", "### ### ###", "SIN"),
            ("au.tfn", "#########", "TFN"),
            ("tr.tckimlik", "###########", "TC kimlik no"),
            ("kr.rrn", "YYMMDD-1######", ""),
            ("ar.cuit", "20-########-#", ""),
            ("cl.rut", "##.###.###-#", ""),
            ("de.idnr", "###########", "Steuer-ID"),
            ("fr.nir", "1 YY MM ## ### ### ##", ""),
            ("za.idnr", "YYMMDD#######", "SA ID"),
        ]
        for name, shape, lead in shapes:
            valid = import_module(f"stdnum.{name}").is_valid
            for _ in range(each):
                yield self.framed("NATIONAL_ID", self._drawn(shape, valid), lead)

    def _drawn(self, shape: str, valid: Callable[[str], bool]) -> str:
        for _ in range(60_000):
            filled = shape
            for mark, low, high in (("YY", 50, 99), ("MM", 1, 12), ("DD", 1, 28)):
                filled = filled.replace(mark, f"{self.random.randint(low, high):02d}")
            value = "".join(
                self.random.choice(string.digits)
                if c == "#"
                else self.random.choice("ABCDEFGHJKLMNPRSTVWXYZ")
                if c == "L"
                else c
                for c in filled
            )
            if valid(value):
                return value
        raise AssertionError(f"no valid number of shape {shape}")

    def addresses(self, count: int) -> Iterable[Sample]:
        for number in range(count):
            if number % 3 == 2:
                yield self.framed("IP", self.prose.ipv6())
            else:
                yield self.framed("IP", self.prose.ipv4_public() if number % 2 else self.prose.ipv4_private())

    def macs(self, count: int) -> Iterable[Sample]:
        for number in range(count):
            value = self.prose.mac_address()
            yield self.framed("MAC", value.replace(":", "-").upper() if number % 2 else value)

    def urls(self, count: int) -> Iterable[Sample]:
        for number in range(count):
            secret = self.letters(self.random.randint(8, 24))
            host = self.prose.domain_name()
            if number % 2:
                scheme = self.random.choice(["postgres", "https", "mongodb+srv", "redis", "amqp"])
                value = f"{self.prose.user_name()}:{secret}"
                text = f"{self.prose.sentence()} {scheme}://{value}@{host}/app {self.prose.sentence()}"
                yield Sample(text, (("URL_CREDENTIALS", value),))
            else:
                name = self.random.choice(["token", "api_key", "sig", "access_token", "password", "key"])
                text = f"GET https://{host}/v1/items?page=2&{name}={secret}&sort=asc HTTP/1.1"
                yield Sample(text, (("URL_SECRET", secret),))

    def secrets(self, count: int) -> Iterable[Sample]:
        for number in range(count):
            secret = self.letters(self.random.randint(8, 20)) + self.digits(2)
            form = number % 6
            text = [
                f"DB_PASSWORD={secret}\nDB_HOST=db.internal\n",
                f'{{"password": "{secret}", "user": "app"}}',
                f"Server=db;Database=app;User Id=sa;Password={secret};Encrypt=true",
                f"curl -H 'Authorization: Bearer {secret}{secret}' https://api.internal/v1",
                f"api_key: {secret}\nregion: eu\n",
                f"the password is {secret} and please change it",
            ][form]
            yield Sample(text, (("SECRET", secret),))

    def keys(self, each: int) -> Iterable[Sample]:
        word = string.ascii_letters + string.digits
        hexes = "0123456789abcdef"
        capitals = string.ascii_uppercase + "234567"
        makers: list[Callable[[], str]] = [
            lambda: "sk-" + self.letters(48),
            lambda: "sk-proj-" + self.letters(60, word + "_-") + "A1b2c3d4E5",
            lambda: "sk-ant-api03-" + self.letters(80) + "-" + self.letters(10) + "AA",
            lambda: "ghp_" + self.letters(36),
            lambda: "gho_" + self.letters(36),
            lambda: "github_pat_" + self.letters(22) + "_" + self.letters(59),
            lambda: "glpat-" + self.letters(20),
            lambda: f"xoxb-{self.digits(12)}-{self.digits(12)}-{self.letters(24)}",
            lambda: "sk_live_" + self.letters(24),
            lambda: "whsec_" + self.letters(32),
            lambda: "AKIA" + self.letters(16, capitals),
            lambda: "AIza" + self.letters(35),
            lambda: "ya29." + self.letters(60),
            lambda: "hf_" + self.letters(34),
            lambda: "npm_" + self.letters(36),
            lambda: "pypi-AgEIcHlwaS5vcmc" + self.letters(60),
            lambda: f"SG.{self.letters(22)}.{self.letters(43)}",
            lambda: "SK" + self.letters(32, hexes),
            lambda: "dapi" + self.letters(32, hexes),
            lambda: f"{self.digits(9)}:AA{self.letters(33)}",
            lambda: "gsk_" + self.letters(52),
            lambda: "nvapi-" + self.letters(64),
            lambda: "shpat_" + self.letters(32, hexes),
            lambda: "glsa_" + self.letters(32) + "_" + self.letters(8, hexes),
            lambda: "hvs." + self.letters(90),
            lambda: "dop_v1_" + self.letters(64, hexes),
            lambda: "r8_" + self.letters(37),
            lambda: "pplx-" + self.letters(48),
        ]
        for maker in makers:
            for _ in range(each):
                yield self.framed("API_KEY", maker())

    def private_keys(self, count: int) -> Iterable[Sample]:
        for number in range(count):
            name = ["RSA PRIVATE KEY", "PRIVATE KEY", "OPENSSH PRIVATE KEY", "EC PRIVATE KEY"][number % 4]
            raw = bytes(self.random.getrandbits(8) for _ in range(self.random.randint(120, 2400)))
            encoded = base64.b64encode(raw).decode()
            lines = "\n".join(encoded[i : i + 64] for i in range(0, len(encoded), 64))
            value = f"-----BEGIN {name}-----\n{lines}\n-----END {name}-----"
            if number % 2:
                text = json.dumps({"key": value})
                yield Sample(text, (("PRIVATE_KEY", json.dumps(value)[1:-1]),))
            else:
                yield Sample(f"use this\n{value}\nthanks", (("PRIVATE_KEY", value),))

    def tokens(self, count: int) -> Iterable[Sample]:
        for _ in range(count):
            parts = [
                json.dumps({"alg": "HS256", "typ": "JWT"}),
                json.dumps({"sub": self.letters(8), "iat": 1}),
            ]
            coded = [base64.urlsafe_b64encode(p.encode()).decode().rstrip("=") for p in parts]
            yield self.framed("JWT", ".".join([*coded, self.letters(43)]))

    def positives(self) -> list[Sample]:
        """Every kind; far more than 400."""
        made: list[Sample] = []
        made.extend([*self.emails(75), *self.phones(), *self.cards(60), *self.ibans(48), *self.national(5)])
        made.extend([*self.addresses(54), *self.macs(30), *self.urls(60), *self.secrets(60)])
        made.extend([*self.keys(3), *self.private_keys(20), *self.tokens(30)])
        return made

    def negatives(self, each: int = 10) -> list[Sample]:
        """What looks private and is not: identifiers, hashes, versions, times, amounts, code, prose."""
        draw, f = self.random, self.prose
        n, d, w = draw.randint, self.digits, f.word

        def h(count: int) -> str:
            return self.letters(count, "0123456789abcdef")

        def not_luhn() -> str:
            while luhn(made := "9" + d(15)):
                pass
            return made

        makers: list[Callable[[], str]] = [
            lambda: f"request {uuid.UUID(int=draw.getrandbits(128))} finished",
            lambda: f"commit {h(40)} by ci",
            lambda: f"sha256:{h(64)} pulled",
            lambda: f"built at 2026-{n(1, 12):02d}-{n(1, 28):02d}T19:16:47.{d(6)}Z",
            lambda: f"python {n(2, 3)}.{n(1, 13)}.{n(0, 20)} with numpy 1.26.4",
            lambda: f"version 10.0.{d(5)}.{n(1, 9)} of the driver v{n(1, 9)}.2.3.4",
            lambda: f"order {not_luhn()} shipped",
            lambda: f"invoice no. {d(8)} of {n(1, 28)}.{n(1, 12)}.2026",
            lambda: f"took {d(13)} ns, {d(10)} bytes",
            lambda: f"loss={draw.random():.16f} lr={draw.random():.8e}",
            lambda: f"total {n(1, 9)} {d(3)} {d(3)} tokens; ${n(1, 9)},500",
            lambda: f"@app.route('/x{d(2)}')\ndef view(): pass",
            lambda: f"<img src='icon@{n(2, 3)}x.png' srcset='{w()}@2x.webp 2x'>",
            lambda: f"npm install @{w()}/{w()}@{n(1, 20)}.{n(0, 20)}.0",
            lambda: f"std::vector<int> {w()}; using a::{w()}; Foo::bar::baz();",
            lambda: f"at {n(0, 23):02d}:{n(0, 59):02d}:{n(0, 59):02d} and 12:30:45.123",
            lambda: f"x[{n(0, 99)}:{n(100, 200)}] = y[1:2, 3:4, 5:6]",
            lambda: f"lat {draw.uniform(-90, 90):.6f}, lon {draw.uniform(-180, 180):.6f}",
            lambda: f"ISBN 978-{n(0, 9)}-{d(4)}-{d(4)}-{n(0, 9)}",
            lambda: f"colour #{h(6)} over #{h(3)}",
            lambda: f"arXiv:{d(4)}.{d(5)} and doi 10.1145/{d(7)}.{d(7)}",
            lambda: f"password = get_password(user)\ntoken: str = tokenizer.{w()}(text)",
            lambda: "the password is required; token limit reached; secret is missing",
            lambda: f"sk-{w()}-{w()}-{w()}-{w()} {{ margin: 0 }}",
            lambda: f"key-{w()} and live_{w()}_{w()}_{w()} names",
            lambda: f"fingerprint SHA256:{self.letters(43)}",
            lambda: f"serial {':'.join(h(2) for _ in range(20))}",
            lambda: f"listening on 127.0.0.1:{d(4)} and 0.0.0.0, [::1]",
            lambda: f"{n(1990, 2030)}-{n(1990, 2030)} season, pages {n(100, 999)}-1200",
            lambda: f"range(1, {d(7)}, 2) * 1e{n(2, 9)} + {d(3)}.{d(2)}",
            lambda: "|".join(str(n(100, 99_999)) for _ in range(8)),
            lambda: " ".join(f"{draw.random():.3f}" for _ in range(10)),
            lambda: f.paragraph(nb_sentences=4),
            lambda: f"git clone git@github.com:{w()}/{w()}.git",
            lambda: f"GET /v1/items/{d(9)}?page={n(1, 9)}&limit=50&order=asc HTTP/1.1",
            lambda: f"Traceback: File \"/srv/app/{w()}.py\", line {n(1, 999)}, in {w()}",
            lambda: f"part number {d(3)}-{self.letters(4, string.ascii_uppercase)}-{d(3)}",
            lambda: f"tracking 1Z{self.letters(16, string.ascii_uppercase + string.digits)}",
            lambda: f"ticket ABC-{d(5)}, PR #{d(4)}, issue {w()}/{w()}#{d(3)}",
            lambda: f"scores {n(10, 99)} {d(3)} {d(3)} and 1 000 000 000 in all",
            lambda: f"lines 6{d(3)}-8{d(3)} of the file, bbox 120 340 560 {n(600, 999)}",
            lambda: f"EAN 4006381{d(6)} and UPC 0123456789{d(2)}",
            lambda: f"call step({d(8)}) then foo.call(0x{h(8)})",
            lambda: f"+{n(1, 99)}% and +{d(9)} users, x = a+{d(10)}",
            lambda: f"epoch {n(1_500_000_000, 1_900_000_000)} seq {d(11)} len {d(7)}",
            lambda: f"IMEI 35{d(13)} mass {d(3)}.{d(3)} 10.{d(2)}.{d(4)}",
            lambda: f"matrix [[{d(2)} {d(3)} {d(4)}]; [{d(3)}, {d(4)}]]",
            lambda: f"user@host:~$ ssh {w()}@{w()} -p 2222; echo $HOME@{w()}",
            lambda: f"dead::beef or cafe::{w()} or ab:cd:{w()} or 10:20:30:40",
            lambda: f"ZIP {d(5)}-{d(4)}, case {d(2)}-{d(5)}, lot {d(6)}-{d(2)}",
            lambda: f"chatcmpl-{h(32)} span {h(16)}",
        ]  # fmt: skip
        return [Sample(maker()) for maker in makers for _ in range(each)]


def scores(samples: Iterable[Sample], redactor: Redactor) -> tuple[dict[str, Score], dict[str, Score]]:
    """(by kind, phones by country). A value counts as found only where every character of it is covered;
    a hit is right where it overlaps a labelled value of the text."""
    return scores_of(samples, redactor.find)


def scores_of(
    samples: Iterable[Sample], find: Callable[[str], list[Hit]]
) -> tuple[dict[str, Score], dict[str, Score]]:
    values: Counter[str] = Counter()
    covered: Counter[str] = Counter()
    hits: Counter[str] = Counter()
    right: Counter[str] = Counter()
    country: Counter[str] = Counter()
    country_found: Counter[str] = Counter()
    for sample in samples:
        found = find(sample.text)
        places = []
        for kind, value in sample.values:
            start = sample.text.index(value)
            end = start + len(value)
            places.append((start, end))
            values[kind] += 1
            ok = any(h.start <= start and end <= h.end for h in found)
            covered[kind] += ok
            if sample.group:
                country[sample.group] += 1
                country_found[sample.group] += ok
        for hit in found:
            hits[hit.kind] += 1
            right[hit.kind] += any(hit.start < end and start < hit.end for start, end in places)
    kinds = sorted(values | hits)
    by_kind = {k: Score(values[k], covered[k], hits[k], right[k]) for k in kinds}
    by_country = {c: Score(country[c], country_found[c], 0, 0) for c in sorted(country)}
    return by_kind, by_country


def missed(samples: Iterable[Sample], redactor: Redactor) -> list[tuple[str, str, str]]:
    """(kind, value or hit, text) of everything wrong, for a person to look at."""
    wrong = []
    for sample in samples:
        found = redactor.find(sample.text)
        places = []
        for kind, value in sample.values:
            start = sample.text.index(value)
            places.append((start, start + len(value)))
            if not any(h.start <= start and start + len(value) <= h.end for h in found):
                wrong.append((f"missed {kind}", value, sample.text))
        for hit in found:
            if not any(hit.start < end and start < hit.end for start, end in places):
                wrong.append((f"wrong {hit.kind}", sample.text[hit.start : hit.end], sample.text))
    return wrong
