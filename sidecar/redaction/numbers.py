"""Numbers that name a person: cards, telephones, national identifiers. Told apart by shape and check digit.

One scan finds candidates (digits with separators); everything here looks at one candidate only.
A bare run of digits is a telephone or an identifier only where the words before it (or the key it is
stored under) say so: order numbers, times and sizes look the same. Cards need no words, their issuer
prefix, length and Luhn digit are enough.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import accumulate, pairwise

import phonenumbers
from phonenumbers import PhoneMetadata, PhoneNumberFormat

from sidecar.redaction.national import national_numbers

Span = tuple[int, int, str]  # start, end, kind

DEFAULT_REGIONS = (
    "US", "GB", "DE", "FR", "ES", "IT", "NL", "BE", "CH", "AT", "PL", "SE", "NO", "DK", "FI", "PT", "IE",
    "IN", "AU", "NZ", "BR", "MX", "JP", "ZA", "KR", "CN", "TR", "GR", "CZ", "HU", "RO", "SG", "IL", "AR",
)  # fmt: skip

_REACH = 48  # characters before a number in which a word may explain it
_MOST_GROUPS = 8
_DIGITS = re.compile(r"\d+")
_HEX_RUN = re.compile(r"[0-9a-fA-F]+\Z")
_PHONE_WORD = re.compile(
    r"(?i)(?:phone|mobile|\bmob\b|\bcell\b|\bcall(?:ed|ing)?\b|\btel\b|\btel[.:]|\bfax\b|whatsapp|\bsms\b|"
    r"\btext(?:ed)? (?:me|her|him|us|them)|\bring\b|\bdial|telefon|t[ée]l[ée]phone|tel[ée]fono|telefone|"
    r"handy|\bnumber is\b|\bhotline\b|\breach (?:me|us|him|her|them)|\bcelular\b|\bcontact\b|puhelin|"
    r"電話|电话|전화|\bt[ée]l\b|\bmobil\b|\bm[óo]vil\b|\bportable\b|\bmobiel\b|\bcellulare\b|\bkom[óo]rk|\bland-?line\b|"
    r"\b(?:direct|office|home|work|private) (?:line|number)\b|\bget hold of\b|\bgsm\b|телефон|"
    r"\b(?:please|pls|just|can|could) text\b)"
)
_ID_WORD = re.compile(
    r"(?i)(?:\bssn\b|social[ _-]?security|\bitin\b|\btax(?:payer)?[ _-]?(?:id|no|number|file)|\btin\b|"
    r"\bnhs\b|national[ _-]?(?:id|insurance|identi)|identity (?:card|number)|\bid[ _-]?(?:card|number|no)\b|"
    r"\bbsn\b|burgerservice|\bpesel\b|\bcpf\b|\bcnpj\b|personnummer|"
    r"person(?:al)?[ _-]?(?:id|code|number|no|nr)\b|steuer[ _-]?(?:id|nummer)|\bidnr\b|rijksregister|"
    r"registre national|\bcnp\b|\begn\b|\bamka\b|\bt\.?c\.? kimlik|\btckn\b|aadhaar|f[øo]dselsnummer|"
    r"\bcpr\b|\bsin\b|social insurance|\btfn\b|\bahv\b|\bavs\b|sozialversicherung|\bsvnr\b|\bnif\b|"
    r"contribuinte|numer[oó] de identi|\bcuit\b|\bcuil\b|teudat|isikukood|asmens kodas|\boib\b|rodn[eé]|"
    r"\bnir\b|s[ée]curit[ée] sociale|\brrn\b|resident (?:id|registration)|\bsa id\b|south african id|身份证|"
    r"citizen[ _-]?(?:id|number))"
)
# Identifiers whose way of being written is telling: the groups' lengths, the separators, who checks it.
_WRITTEN: dict[tuple[int, ...], tuple[tuple[str, str], ...]] = {
    (3, 2, 4): (("  ", "us.ssn"),),
    (3, 3, 3, 2): (("..-", "br.cpf"),),
    (2, 3, 3, 4, 2): (("../-", "br.cnpj"),),
    (2, 2, 2, 3, 2): (("..-.", "be.nn"), ("   -", "be.nn")),
    (3, 4, 4, 2): (("...", "ch.ssn"),),
    (1, 2, 2, 2, 3, 3, 2): (("      ", "fr.nir"),),
    (1, 2, 2, 2, 3, 3): (("     ", "fr.nir"),),
    (13, 2): ((" ", "fr.nir"),),
    (6, 4): (("-", "dk.cpr"), ("-", "se.personnummer"), ("/", "cz.rc")),
    (8, 4): (("-", "se.personnummer"),),
    (6, 3): (("/", "cz.rc"),),
    (6, 5): ((" ", "no.fodselsnummer"),),
    (4, 4, 4): (("  ", "in_.aadhaar"), ("--", "in_.aadhaar")),
    (6, 7): (("-", "kr.rrn"),),
    (2, 8, 1): (("--", "ar.cuit"),),
    (18,): (("", "cn.ric"),),
    (3, 3, 3): (("--", "ca.sin"), ("  ", "ca.sin")),
    (2, 3, 3, 3): (("   ", "de.idnr"),),
    (4, 6): ((" ", "at.vnr"),),
}
# Those that are plain digits; only believed after a word that names such a number.
_BY_LENGTH: dict[int, tuple[str, ...]] = {
    8: ("nl.bsn",),
    9: ("us.ssn", "us.itin", "nl.bsn", "ca.sin", "au.tfn", "pt.nif", "il.idnr", "cz.rc"),
    10: ("gb.nhs", "bg.egn", "at.vnr", "dk.cpr", "se.personnummer", "cz.rc"),
    11: (
        "pl.pesel", "br.cpf", "de.idnr", "be.nn", "no.fodselsnummer", "tr.tckimlik", "gr.amka", "hr.oib",
        "ee.ik", "lt.asmens", "ar.cuit",
    ),
    12: ("in_.aadhaar", "se.personnummer"),
    13: ("ro.cnp", "za.idnr", "kr.rrn", "ch.ssn", "fr.nir"),
    14: ("br.cnpj",),
    15: ("fr.nir",),
    18: ("cn.ric",),
}  # fmt: skip
_CARD_LENGTHS = {
    "34": (15,), "37": (15,), "36": (14,), "38": (14, 16), "39": (14,), "30": (14,), "35": (16, 17, 18, 19),
    "4": (16, 19), "51": (16,), "52": (16,), "53": (16,), "54": (16,), "55": (16,),
    "57": (16,), "81": (16,), "50": (16, 19), "56": (16, 19), "58": (16, 19), "60": (16, 19), "63": (16, 19),
    "64": (16, 19), "65": (16, 19), "67": (16, 19), "62": (16, 17, 18, 19),
}  # fmt: skip
_CARD_GROUPS = ((4, 4, 4, 4), (4, 6, 5), (4, 6, 4), (4, 4, 4, 4, 3))
_DATE = re.compile(
    r"(?:(?:19|20)\d\d([-/. ])[01]?\d\1[0-3]?\d|[0-3]?\d([-/.])[0-3]?\d\2(?:19|20)?\d\d)(?:[ ]\d{1,2})?\Z"
)
_DECIMAL = re.compile(
    r"\d+\.\d+\Z|\d{1,2}\.\d{1,2}\.\d+\Z|\d{1,3}(?:\.\d{1,3}){3}\Z|"
    r"\d{1,2}(?: \d{3}){2,}\Z|\d{1,2}(?:\.\d{3}){2,}\Z"
)
_WHOLE = re.compile(r"\.0{1,2}(?![\d.])")
_YEARS = re.compile(r"(?:19|20)\d\d ?[-–/] ?(?:19|20)\d\d")
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}(?![\d ./()-])")
_EXTENSION = re.compile(r"(?i)[ ,;]{0,2}(?:x|ext\.?|extension|durchwahl)[ .:]{0,2}\d{1,6}(?![0-9A-Za-z])")


@functools.cache
def stdnum_valid(name: str) -> Callable[[str], bool]:
    """python-stdnum's ``is_valid`` of a module such as ``us.ssn``."""
    check: Callable[[str], bool] = import_module(f"stdnum.{name}").is_valid
    return check


def luhn(digits: str) -> bool:
    """The check digit of payment cards (ISO/IEC 7812-1)."""
    total = 0
    for place, char in enumerate(reversed(digits)):
        value = ord(char) - 48
        if place & 1:
            value *= 2
            if value > 9:
                value -= 9
        total += value
    return total % 10 == 0


def is_card(digits: str) -> bool:
    """An issuer's prefix, a length it uses, a right check digit, and not one digit over and over."""
    lengths = _CARD_LENGTHS.get(digits[0]) or _CARD_LENGTHS.get(digits[:2])
    if lengths is None and 2221 <= int(digits[:4]) <= 2720:
        lengths = (16,)
    return bool(lengths) and len(digits) in (lengths or ()) and len(set(digits)) > 1 and luhn(digits)


class _Candidate:
    """A run of digits and separators, and what the words before it say (looked up once, if at all)."""

    __slots__ = ("_id", "_phone", "_words", "regions", "text")

    def __init__(self, text: str, start: int, hint: str, regions: Sequence[str]) -> None:
        self.text = text
        self.regions = tuple(regions)
        self._words = _before(text, start, hint)
        self._phone: bool | None = None
        self._id: bool | None = None

    def told_phone(self) -> bool:
        """A word says that a telephone number follows."""
        if self._phone is None:
            self._phone = bool(_PHONE_WORD.search(self._words))
        return self._phone

    def told_id(self) -> bool:
        """A word says that an identifier follows."""
        if self._id is None:
            self._id = bool(_ID_WORD.search(self._words))
        return self._id


def find_numbers(text: str, start: int, end: int, hint: str, regions: Sequence[str]) -> Iterator[Span]:
    """The telling parts of the candidate ``text[start:end]``, longest first from the left."""
    if _ADDRESS.match(text, start, end):
        return  # an IPv4 address: another pattern's business
    groups = [(m.start(), m.end()) for m in _DIGITS.finditer(text, start, end)]
    candidate = _Candidate(text, start, hint, regions)
    first = 0
    while first < len(groups):
        if not _clear_left(text, groups[first][0]):
            first += 1
            continue
        for last in range(min(len(groups), first + _MOST_GROUPS), first, -1):
            found = _one(candidate, groups[first:last])
            if found is not None:
                yield found
                first = last
                break
        else:
            first += 1


def _one(candidate: _Candidate, groups: list[tuple[int, int]]) -> Span | None:
    text = candidate.text
    start, end = groups[0][0], groups[-1][1]
    lengths = tuple(b - a for a, b in groups)
    count = sum(lengths)
    if count < 7 or count > 19 or not _clear_right(text, end):
        return None
    digits = "".join(text[a:b] for a, b in groups)
    separators = [text[a[1] : b[0]] for a, b in pairwise(groups)]
    if count >= 13 and len(groups) != 2:
        regular = len(set(separators)) <= 1 and "".join(separators[:1]) in ("", " ", "-", ".")
        if (regular or lengths in _CARD_GROUPS) and is_card(digits):
            return start, end, "CARD"
    if lengths in _WRITTEN or lengths == (15,):
        joined = "".join(separators)
        written = text[start:end]
        if lengths == (15,) and digits[0] in "12" and stdnum_valid("fr.nir")(digits):
            return start, end, "NATIONAL_ID"
        if lengths == (3, 2, 4) and joined == "--" and _is_ssn(digits):
            return start, end, "NATIONAL_ID"
        for wanted, name in _WRITTEN.get(lengths, ()):
            fits = wanted == joined and not (" " in joined and _in_row(text, start, end))
            if fits and stdnum_valid(name)(written):
                return start, end, "NATIONAL_ID"
    if (count in _BY_LENGTH or lengths == (3, 2, 4)) and candidate.told_id():
        if lengths == (3, 2, 4):
            return start, end, "NATIONAL_ID"
        for name in _BY_LENGTH[count]:
            if stdnum_valid(name)(digits):
                return start, end, "NATIONAL_ID"
    odd = any(c in "_\t\r\n" for s in separators for c in s)
    if count > 15 or (odd and text[max(0, start - 1) : start] != "+"):
        return None
    return _phone(candidate, digits, groups)


def _is_ssn(digits: str) -> bool:
    """The shape of a US social security or taxpayer number, whether issued or not."""
    return digits[:3] not in ("000", "666") and digits[3:5] != "00" and digits[5:] != "0000"


def _before(text: str, start: int, hint: str) -> str:
    near = text[max(0, start - _REACH) : start]
    return f"{hint} {near}" if hint else near


def _clear_left(text: str, start: int) -> bool:
    """False where the digits go on to the left: in a word, a decimal, a UUID, a time."""
    if start == 0:
        return True
    char = text[start - 1]
    if char.isalnum() or char == "_":
        return False
    if char in ".-:" and start > 1:
        before = text[start - 2]
        if char == "-":
            run = _HEX_RUN.search(text[max(0, start - 14) : start - 1])
            if run and len(run.group()) >= 3 and run.group() != text[max(0, start - 14) : start - 1].lstrip():
                return not before.isalnum() or not _whole_word(text, start - 1, run.group())
            return not before.isdigit()
        return not before.isdigit()
    return True


def _whole_word(text: str, end: int, run: str) -> bool:
    start = end - len(run)
    return start == 0 or not text[start - 1].isalpha()


def _clear_right(text: str, end: int) -> bool:
    if end >= len(text):
        return True
    char = text[end]
    if char.isalnum() or char in "_%":
        return bool(_EXTENSION.match(text, end))
    if char in ".-:/," and end + 1 < len(text):
        after = text[end + 1]
        if char == "." and _WHOLE.match(text, end):
            return True  # a number that went through a column of floats
        return not after.isdigit() and not (char == "-" and after.isalnum())
    return True


def _phone(candidate: _Candidate, digits: str, groups: list[tuple[int, int]]) -> Span | None:
    text = candidate.text
    start, end = groups[0][0], groups[-1][1]
    opened = start
    while opened > 0 and text[opened - 1] in "+(" and start - opened < 2:
        opened -= 1
    trunk = text[slice(*groups[0])].startswith("00")
    if "+" in text[opened:start] or trunk:
        found = _international(candidate, opened, end, digits[2:] if trunk else digits, trunk, len(groups))
    else:
        found = _national_form(candidate, opened, end, digits, groups)
    if not found:
        return None
    extension = _EXTENSION.match(text, end)
    return opened, extension.end() if extension else end, "PHONE"


def _international(
    candidate: _Candidate, start: int, end: int, digits: str, trunk: bool, groups: int
) -> bool:
    text = candidate.text
    before = text[start - 1 : start] if start else ""
    if before.isalnum() or (before and before in "*/^"):
        return False  # arithmetic
    if trunk and groups == 1 and not candidate.told_phone():
        return False
    if national_numbers(candidate.regions).international(digits):
        return True  # the regions' own numbers cost no parsing
    number = _parsed("+" + digits, None) or _parsed(text[start:end], None)
    if number is None:
        return False
    if groups > 1 and not trunk and before not in ("=", "<") and phonenumbers.is_possible_number(number):
        return True
    return phonenumbers.is_valid_number(number)


def _national_form(
    candidate: _Candidate, start: int, end: int, digits: str, groups: list[tuple[int, int]]
) -> bool:
    text = candidate.text
    if len(groups) > 2 and _in_row(text, start, end) and not candidate.told_phone():
        return False  # soonest, since a table of numbers has very many of these
    written = text[start:end]
    if start > 0 and text[start - 1] in "$€£#~":
        return False
    if len(digits) > 14 or _YEARS.fullmatch(written) or _DATE.match(written) or _DECIMAL.match(written):
        return False
    argument = len(groups) == 1 and start > 1 and text[start] == "(" and text[start - 1].isalnum()
    shaped = _phone_shaped(text, start, end, groups)
    if not shaped and (argument or not candidate.told_phone()):
        return False
    told = candidate.told_phone()
    fitting = national_numbers(candidate.regions).fitting(digits, thorough=told)
    if not fitting or told or "(" in written:
        return bool(fitting)
    # The blanks stand as they do when such a number is written in its country, counted from the end, so
    # that a trunk prefix or country code does not matter.
    ours = _breaks([b - a for a, b in groups])
    loose = len(digits) >= 10 and len(ours) > 1
    return any(
        ours == theirs or (loose and theirs and (ours <= theirs or theirs <= ours))
        for region in fitting
        for theirs in region.breaks(digits)
    )


def _breaks(lengths: list[int]) -> frozenset[int]:
    total = sum(lengths)
    return frozenset(total - done for done in accumulate(lengths[:-1]))


def _phone_shaped(text: str, start: int, end: int, groups: list[tuple[int, int]]) -> bool:
    """Whether digits that no word explains are grouped as a telephone's may be: not one run, not a
    version, not some of a row of numbers, not a range."""
    lengths = [b - a for a, b in groups]
    written = text[start:end]
    separators = {text[a[1] : b[0]].strip("()") for a, b in pairwise(groups)} - {""}
    if len(groups) == 1 or (len(groups) == 2 and sum(lengths) < 9) or sum(lengths) < 8:
        return False
    if "." in separators and (separators != {"."} or 1 in lengths[1:]):
        return False
    if tuple(lengths) == (5, 4) and separators == {"-"}:
        return False  # a ZIP code
    if text[max(0, start - 1) : start] == "[":
        return False
    return not (" " in separators and "(" not in written and _in_row(text, start, end))


def _in_row(text: str, start: int, end: int) -> bool:
    """True where further numbers stand beside, one blank away."""
    before, after = text[max(0, start - 2) : start], text[end : end + 2]
    return (before[:1].isdigit() and before[1:] == " ") or (after[:1] == " " and after[1:].isdigit())


def warm_up(regions: Sequence[str]) -> None:
    """Load what the checks need, so that no request pays for it: metadata, modules, compiled patterns."""
    for entries in _WRITTEN.values():
        for _, name in entries:
            stdnum_valid(name)
    for names in _BY_LENGTH.values():
        for name in names:
            stdnum_valid(name)
    for region in regions:
        example = phonenumbers.example_number(region)
        if example is not None:
            written = phonenumbers.format_number(example, PhoneNumberFormat.NATIONAL)
            for _ in find_numbers(f"tel {written}", 4, 4 + len(written), "", [region]):
                pass


def known_region(region: str) -> bool:
    """True for a two-letter region that phonenumbers has numbers for."""
    return PhoneMetadata.metadata_for_region(region) is not None


def _parsed(written: str, region: str | None) -> phonenumbers.PhoneNumber | None:
    try:
        return phonenumbers.parse(written, region)
    except phonenumbers.NumberParseException:
        return None
