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
from itertools import pairwise

import phonenumbers
from phonenumbers import PhoneMetadata, PhoneNumberFormat

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
    r"電話|电话|전화)"
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
    (3, 2, 4): (("--", "us.ssn"), ("--", "us.itin")),
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
_DATE = re.compile(
    r"(?:(?:19|20)\d\d([-/. ])[01]?\d\1[0-3]?\d|[0-3]?\d([-/.])[0-3]?\d\2(?:19|20)?\d\d)(?:[ ]\d{1,2})?\Z"
)
_DECIMAL = re.compile(
    r"\d+\.\d+\Z|\d{1,2}\.\d{1,2}\.\d+\Z|\d{1,3}(?:\.\d{1,3}){3}\Z|"
    r"\d{1,2}(?: \d{3}){2,}\Z|\d{1,2}(?:\.\d{3}){2,}\Z"
)
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


def find_numbers(text: str, start: int, end: int, hint: str, regions: Sequence[str]) -> Iterator[Span]:
    """The telling parts of the candidate ``text[start:end]``, longest first from the left."""
    groups = [(start + m.start(), start + m.end()) for m in _DIGITS.finditer(text[start:end])]
    first = 0
    while first < len(groups):
        if not _clear_left(text, groups[first][0]):
            first += 1
            continue
        for last in range(min(len(groups), first + _MOST_GROUPS), first, -1):
            found = _one(text, groups[first:last], hint, regions)
            if found is not None:
                yield found
                first = last
                break
        else:
            first += 1


def _one(text: str, groups: list[tuple[int, int]], hint: str, regions: Sequence[str]) -> Span | None:
    start, end = groups[0][0], groups[-1][1]
    digits = "".join(text[a:b] for a, b in groups)
    count = len(digits)
    if count < 7 or count > 19 or not _clear_right(text, end):
        return None
    separators = [text[a[1] : b[0]] for a, b in pairwise(groups)]
    regular = len(set(separators)) <= 1 and "".join(separators[:1]) in ("", " ", "-", ".")
    if count >= 13 and regular and len(groups) != 2 and is_card(digits):
        return start, end, "CARD"
    lengths = tuple(b - a for a, b in groups)
    written = text[start:end]
    if all(len(s) == 1 for s in separators):
        joined = "".join(separators)
        if lengths == (15,) and digits[0] in "12" and stdnum_valid("fr.nir")(digits):
            return start, end, "NATIONAL_ID"
        for wanted, name in _WRITTEN.get(lengths, ()):
            if (
                wanted == joined
                and not (" " in joined and _in_row(text, start, end))
                and stdnum_valid(name)(written)
            ):
                return start, end, "NATIONAL_ID"
    if _ID_WORD.search(_before(text, start, hint)):
        for name in _BY_LENGTH.get(count, ()):
            if stdnum_valid(name)(digits):
                return start, end, "NATIONAL_ID"
        if lengths == (3, 2, 4):
            return start, end, "NATIONAL_ID"
    return _phone(text, start, end, digits, groups, hint, regions)


def _before(text: str, start: int, hint: str) -> str:
    near = text[max(0, start - _REACH) : start]
    return f"{hint} {near}" if hint else near


def _clear_left(text: str, start: int) -> bool:
    """False where the digits go on to the left: in a word, a decimal, a UUID, a time."""
    if start == 0:
        return True
    char = text[start - 1]
    if char.isalnum() or char in "_$€£#~":
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
        return not after.isdigit() and not (char == "-" and after.isalnum())
    return True


def _phone(
    text: str,
    start: int,
    end: int,
    digits: str,
    groups: list[tuple[int, int]],
    hint: str,
    regions: Sequence[str],
) -> Span | None:
    if len(digits) > 15:
        return None
    opened = start
    while opened > 0 and text[opened - 1] in "+(" and start - opened < 2:
        opened -= 1
    trunk = text[slice(*groups[0])].startswith("00")
    international = "+" in text[opened:start] or trunk
    written = text[opened:end]
    extension = _EXTENSION.match(text, end)
    stop = extension.end() if extension else end
    if international:
        if opened > 0 and (text[opened - 1].isalnum() or text[opened - 1] in "=<>*/^"):
            return None  # arithmetic
        number = _parsed("+" + (digits[2:] if trunk else digits), None)
        if number is None:
            number = _parsed(written, None)
        if number is None:
            return None
        if phonenumbers.is_valid_number(number) or (
            len(groups) > 1 and phonenumbers.is_possible_number(number) and not trunk
        ):
            return opened, stop, "PHONE"
        return None
    if _DATE.match(written) or _DECIMAL.match(written) or len(digits) > 13:
        return None
    told = bool(_PHONE_WORD.search(_before(text, start, hint)))
    if len(groups) == 1 and opened > 1 and text[opened] == "(" and (text[opened - 1].isalnum()):
        told = False  # the argument of a call
    if not told and not _phone_shaped(text, opened, end, groups):
        return None
    for region in regions:
        if not _national(region).fits(digits):
            continue
        number = _parsed(written, region)
        if number is None or not phonenumbers.is_valid_number(number):
            continue
        if told or "(" in written or _grouped_alike(groups, number):
            return opened, stop, "PHONE"
    return None


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


class _National:
    """A cheap look at a region's numbers, so that the costly parser sees only what can pass."""

    def __init__(self, region: str) -> None:
        metadata = PhoneMetadata.metadata_for_region(region)
        assert metadata is not None
        assert metadata.general_desc is not None
        pattern = metadata.general_desc.national_number_pattern
        prefix = metadata.national_prefix_for_parsing or metadata.national_prefix or ""
        code = str(metadata.country_code)
        # Where a prefix is rewritten (Argentina's mobiles), only the parser can tell.
        self._rewritten = bool(metadata.national_prefix_transform_rule)
        self._whole = re.compile(f"(?:{prefix})?(?:{pattern})" if prefix else f"(?:{pattern})")
        self._coded = re.compile(f"{code}(?:{pattern})")

    def fits(self, digits: str) -> bool:
        if self._rewritten and 10 <= len(digits) <= 14:
            return True
        return bool(self._whole.fullmatch(digits) or self._coded.fullmatch(digits))


@functools.cache
def _national(region: str) -> _National:
    return _National(region)


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


def _grouped_alike(groups: list[tuple[int, int]], number: phonenumbers.PhoneNumber) -> bool:
    """True where the blanks stand as they do when this number is written in its country.

    Compared by distance from the end, so that a trunk prefix or country code does not matter.
    """
    ours = _breaks([b - a for a, b in groups])
    loose = sum(b - a for a, b in groups) >= 10
    for style in (PhoneNumberFormat.NATIONAL, PhoneNumberFormat.INTERNATIONAL):
        theirs = _breaks([len(g) for g in _DIGITS.findall(phonenumbers.format_number(number, style))])
        if ours == theirs or (loose and len(ours) > 1 and (ours <= theirs or theirs <= ours) and theirs):
            return True
    return False


def _breaks(lengths: list[int]) -> set[int]:
    total = sum(lengths)
    places = set()
    done = 0
    for length in lengths[:-1]:
        done += length
        places.add(total - done)
    return places
