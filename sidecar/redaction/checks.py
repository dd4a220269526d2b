"""The second step: is what a pattern found the real thing? One function for each check a pattern may name."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from sidecar.redaction.numbers import Span, find_numbers, is_card, stdnum_valid

Check = Callable[[str, int, int, str, Sequence[str]], Iterator[Span]]
"""(text, start, end, hint, regions) -> spans that are real; kind '' means the pattern's own kind."""

_FILE_ENDINGS = frozenset({
    "png", "jpg", "jpeg", "gif", "svg", "webp", "bmp", "ico", "tif", "tiff", "pdf", "css", "scss", "js",
    "mjs", "jsx", "tsx", "html", "htm", "map", "json", "yaml", "yml",
})  # fmt: skip
_VERSION_HEAD = re.compile(r"v?\d+(?:\.\d+)+|v?\d+\.|\d+x\.")
_MAIL_ENDINGS = frozenset({"com", "net", "org", "edu", "gov", "info", "biz", "cn", "tw", "hk", "jp", "kr"})
_WIDE = re.compile(r"[⺀-鿿가-힯豈-﫿ぁ-ヿ฀-๿]")
_PLACEHOLDER = re.compile(
    r"(?i)[<{\[$%(*].*|x{4,}|\*+|\.+|_+|"
    r"(?:your|my|the|some|example|sample|dummy|test|change|insert|enter)[-_ ]\D*|"
    r"(?:none|null|true|false|undefined|required|optional|string|redacted|secret|password|token|masked|hidden|"
    r"missing|invalid|expired|incorrect|wrong|needed|empty)\W*"
)


def email(text: str, start: int, end: int, hint: str, regions: Sequence[str]) -> Iterator[Span]:
    """An address; not a retina picture name, a package with its version, or the words glued around it."""
    at = text.index("@", start, end)
    local, domain = text[start:at], text[at + 1 : end]
    if local[-1:].isascii() and (wide := _last(_WIDE, local)) is not None:
        start += wide
    head = domain.rsplit(".", 1)
    ending = head[1]
    if ending[:1].isascii() and (cut := _WIDE.search(ending)) is not None:
        end -= len(ending) - cut.start()
        ending = ending[: cut.start()]
    while start < at and text[start] in "'.-":
        start += 1
    if start >= at or len(ending) < 2 or ".." in domain:
        return
    if ending.lower() in _FILE_ENDINGS:
        return
    if ending.lower() not in _MAIL_ENDINGS and _VERSION_HEAD.match(domain):
        return  # a package with its version; but 163.com and its like are mail hosts
    if text[start:at] == "git" and text[end : end + 1] == ":":
        return
    yield start, end, ""


def _last(pattern: re.Pattern[str], text: str) -> int | None:
    found = None
    for match in pattern.finditer(text):
        found = match.end()
    return found


def number(text: str, start: int, end: int, hint: str, regions: Sequence[str]) -> Iterator[Span]:
    """Cards, telephones and identifiers made of digits."""
    return find_numbers(text, start, end, hint, regions)


def card(text: str, start: int, end: int, hint: str, regions: Sequence[str]) -> Iterator[Span]:
    """A card number with one odd separator between its groups or digits, not some of a row of numbers."""
    groups = [(m.start(), m.end()) for m in re.finditer(r"\d+", text[start:end])]
    first, last = start + groups[0][0], start + groups[-1][1]
    between = {text[start + a[1] : start + b[0]] for a, b in pairwise(groups)}
    if len(between) > 1 or (last < len(text) and text[last].isalnum()):
        return
    separator = next(iter(between), "")
    before = text[max(0, first - 4) : first].removesuffix(separator)
    after = text[last : last + 4].removeprefix(separator)
    if separator and (before[-1:].isdigit() or after[:1].isdigit()):
        return
    if is_card("".join(text[start + a : start + b] for a, b in groups)):
        yield first, last, ""


# Registered lengths by country.
_IBAN_LENGTHS = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BI": 27,
    "BR": 29, "BY": 28, "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DJ": 27, "DK": 18, "DO": 28,
    "EE": 20, "EG": 29, "ES": 24, "FI": 18, "FK": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23,
    "GL": 18, "GR": 27, "GT": 28, "HN": 28, "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IQ": 23, "IS": 26,
    "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LC": 32, "LI": 21, "LT": 20, "LU": 20, "LV": 21,
    "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19, "MN": 20, "MR": 27, "MT": 31, "MU": 30, "NI": 28,
    "NL": 18, "NO": 15, "OM": 23, "PK": 24, "PL": 28, "PS": 29, "PT": 25, "QA": 29, "RO": 24, "RS": 22,
    "RU": 33, "SA": 24, "SC": 31, "SD": 18, "SE": 24, "SI": 19, "SK": 24, "SM": 27, "SO": 23, "ST": 25,
    "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24, "XK": 20, "YE": 30,
}  # fmt: skip


def iban(text: str, start: int, end: int, hint: str, regions: Sequence[str]) -> Iterator[Span]:
    """The country's length and mod 97; what follows the account number is left alone."""
    length = _IBAN_LENGTHS.get(text[start : start + 2].upper())
    if length is None:
        return
    places = [i for i in range(start, end) if text[i] not in " -"]
    if len(places) < length:
        return
    last = places[length - 1] + 1
    if (last < len(text) and text[last].isalnum()) or not _mod97("".join(text[i] for i in places[:length])):
        return
    yield start, last, ""


def _mod97(account: str) -> bool:
    turned = account[4:] + account[:4]
    return int("".join(str(int(c, 36)) for c in turned)) % 97 == 1


def _by_stdnum(name: str) -> Check:
    def check(text: str, start: int, end: int, hint: str, regions: Sequence[str]) -> Iterator[Span]:
        if not _continued(text, start, end) and stdnum_valid(name)(text[start:end]):
            yield start, end, ""

    return check


def _continued(text: str, start: int, end: int) -> bool:
    """True where what was found is a piece of a longer number, path or name."""
    if start > 1 and text[start - 1] in ".-/:" and text[start - 2].isdigit():
        return True
    return end + 1 < len(text) and text[end] in ".-+/" and text[end + 1].isdigit()


def es_id(text: str, start: int, end: int, hint: str, regions: Sequence[str]) -> Iterator[Span]:
    """DNI or NIE with its letter."""
    value = text[start:end].replace(".", "").replace("-", "").replace(" ", "").upper()
    if not _continued(text, start, end) and stdnum_valid("es.nie" if value[0] in "XYZ" else "es.dni")(value):
        yield start, end, ""


def ipv4(text: str, start: int, end: int, hint: str, regions: Sequence[str]) -> Iterator[Span]:
    """Four octets that stand alone; loopback, the unspecified address and versions name nobody."""
    before, after = text[max(0, start - 1) : start], text[end : end + 1]
    if before.isalnum() or (before in (".", "-") and before) or after.isalnum():
        return
    if after in (".", "-") and after and text[end + 1 : end + 2].isdigit():
        return
    if re.search(
        r"(?i)(?:\bv|version|release|ver\.?|build|chapter|section|§)[ :=_\"']{0,3}\Z",
        text[max(0, start - 16) : start],
    ):
        return
    value = text[start:end]
    if any(len(part) > 1 and part[0] == "0" for part in value.split(".")):
        return
    yield from _address(value, start, end)


def ipv6(text: str, start: int, end: int, hint: str, regions: Sequence[str]) -> Iterator[Span]:
    """An address by the grammar, long enough not to be a scope operator of a language."""
    before, after = text[max(0, start - 1) : start], text[end : end + 1]
    if before.isalnum() or (before in ("_", ":") and before) or after.isalnum() or after == "_":
        return
    value = text[start:end]
    while value.endswith(":") and not value.endswith("::"):
        value, end = value[:-1], end - 1
    groups = [g for g in value.split(":") if g]
    if len(groups) < 3 and not any(c.isdigit() for c in value):
        return
    if len(groups) < 2:
        return
    yield from _address(value, start, end)


def _address(value: str, start: int, end: int) -> Iterator[Span]:
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        return
    if not (address.is_loopback or address.is_unspecified or value == "255.255.255.255"):
        yield start, end, ""


def mac(text: str, start: int, end: int, hint: str, regions: Sequence[str]) -> Iterator[Span]:
    """A hardware address that is not part of a longer fingerprint, nor all zeros or ones."""
    before, after = text[max(0, start - 1) : start], text[end : end + 1]
    if (before in (":", "-", ".") and before) or (after in (":", "-") and text[end + 1 : end + 2].isalnum()):
        return
    value = re.sub(r"[^0-9a-f]", "", text[start:end].lower())
    if len(set(value)) > 1 and (re.search(r"[:.]", text[start:end]) or not value.isdigit()):
        yield start, end, ""


def assigned(text: str, start: int, end: int, hint: str, regions: Sequence[str]) -> Iterator[Span]:
    """The value given to something called a password, key or token: not code, not a placeholder."""
    value = text[start:end]
    bare = value.lstrip("\\\"'`")
    quoted = bare != value
    named = text[max(0, start - 24) : start].lower()
    start += len(value) - len(bare)
    trimmed = bare.rstrip("\\\"'`.,;:!?)]}")
    end -= len(bare) - len(trimmed)
    if (
        len(trimmed) < 4
        or _PLACEHOLDER.fullmatch(trimmed)
        or "(" in trimmed
        or trimmed.startswith(("[", "os."))
    ):
        return
    digits = any(c.isdigit() for c in trimmed)
    letters = any(c.isalpha() for c in trimmed)
    odd = any(c in "!@#$%^&*+=~?" for c in trimmed)
    # A long word behind "password:" is a passphrase; behind "token:" it may be anything.
    phrase = trimmed.isalpha() and trimmed.islower() and len(trimmed) >= 12 and re.search(_PASSWORD, named)
    if quoted or phrase or (letters and (digits or odd)):
        if not quoted and re.fullmatch(r"[A-Za-z_][\w]*(?:\.[A-Za-z_]\w*)+", trimmed):
            return  # an attribute of something in code
        if trimmed.isdigit() and len(trimmed) < 6:
            return
        yield start, end, ""


_PASSWORD = re.compile(r"(?:passw|passp|passc|pwd|pw|contrase|mot de passe)[^\n]*\Z")
_NO_SECRET = re.compile(
    r"(?i)(?:not|too|very|so|being|now|still|also|only|always|never|stored|hashed|encrypted|reset|correct|weak|strong|"
    r"safe|secure|long|short|visible|saved|known|used|sent|shown|that|this|what|the|in|on|at|for|from|with|set|ok)\W*"
)


def spoken(text: str, start: int, end: int, hint: str, regions: Sequence[str]) -> Iterator[Span]:
    """The word after "my password is", unless it says something about the password."""
    value = text[start:end].rstrip(".!?)\"'")
    if not _PLACEHOLDER.fullmatch(value) and not _NO_SECRET.fullmatch(value):
        yield start, start + len(value), ""


def bearer(text: str, start: int, end: int, hint: str, regions: Sequence[str]) -> Iterator[Span]:
    """The credential of an Authorization header, not the word after 'basic' or 'token' in prose."""
    value = text[start:end]
    if any(c.isdigit() for c in value) and any(c.isalpha() for c in value) and "://" not in value:
        yield start, end, ""


def private_key(text: str, start: int, end: int, hint: str, regions: Sequence[str]) -> Iterator[Span]:
    """From the first marker to the last; without one, all that can still be the key's body."""
    close = re.compile(r"-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----").search(text, end)
    yield start, (close.end() if close else _body_end(text, end)), ""


_KEY_BODY = re.compile(r"(?:[A-Za-z0-9+/=:,. \t\r\n\\_>\"'-]*)")


def _body_end(text: str, start: int) -> int:
    match = _KEY_BODY.match(text, start)
    return match.end() if match else start


def jwt(text: str, start: int, end: int, hint: str, regions: Sequence[str]) -> Iterator[Span]:
    """The first part is base64url of a JSON object."""
    head = text[start:end].lstrip("_").split(".", 1)[0]
    try:
        parsed = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    except (RecursionError, ValueError, binascii.Error):
        return
    if isinstance(parsed, dict):
        yield start, end, ""


def data_url(text: str, start: int, end: int, hint: str, regions: Sequence[str]) -> Iterator[Span]:
    """Only the payload goes; the media type may stay."""
    yield text.index(",", start) + 1, end, ""


def whole(text: str, start: int, end: int, hint: str, regions: Sequence[str]) -> Iterator[Span]:
    """All of it: the engine has looked inside."""
    yield start, end, ""


def token(text: str, start: int, end: int, hint: str, regions: Sequence[str]) -> Iterator[Span]:
    """Looks drawn at random: digits and letters, several different ones, not words with dashes."""
    value = text[start:end]
    if random_looking(value):
        yield start, end, ""


def random_looking(value: str) -> bool:
    """Not words with dashes between: a long run of letters, or letters and digits mixed."""
    if len(set(value)) < 6:
        return False
    words = [w for w in re.split(r"[-_.]", value) if w]
    if any(len(w) >= 24 or (len(w) >= 20 and not w.islower()) for w in words):
        return True
    if not any(c.isdigit() for c in value) or not any(c.isalpha() for c in value):
        return False
    odd = [w for w in words if not (w.isalpha() and (w.islower() or w.istitle())) and not w.isdigit()]
    return any(len(w) >= 8 for w in odd) or len(odd) * 2 > len(words)


def github(text: str, start: int, end: int, hint: str, regions: Sequence[str]) -> Iterator[Span]:
    """Right by its checksum (CRC-32 in base 62), or of the issued length and random."""
    value = text[start:end].lstrip("_")
    if github_checksum_ok(value) or (len(value) >= 40 and random_looking(value)):
        yield start, end, ""


def github_checksum_ok(value: str) -> bool:
    """The last six characters are the base 62 CRC-32 of the 30 between prefix and them."""
    if len(value) != 40:
        return False
    body, given = value[4:34], value[34:]
    alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    rest = zlib.crc32(body.encode())
    wanted = ""
    for _ in range(6):
        rest, digit = divmod(rest, 62)
        wanted = alphabet[digit] + wanted
    return given == wanted


def aws_id(text: str, start: int, end: int, hint: str, regions: Sequence[str]) -> Iterator[Span]:
    """Base 32 behind the prefix, not a word in capitals."""
    body = text[start:end].strip("_")[4:]
    if any(c.isdigit() for c in body) or len(set(body)) >= 8:
        yield start, end, ""


CHECKS: dict[str, Check] = {
    "email": email,
    "number": number,
    "card": card,
    "encoded": whole,
    "iban": iban,
    "es_id": es_id,
    "it_id": _by_stdnum("it.codicefiscale"),
    "mx_id": _by_stdnum("mx.curp"),
    "fi_id": _by_stdnum("fi.hetu"),
    "se_id": _by_stdnum("se.personnummer"),
    "in_pan": _by_stdnum("in_.pan"),
    "ie_id": _by_stdnum("ie.pps"),
    "cn_id": _by_stdnum("cn.ric"),
    "cl_id": _by_stdnum("cl.rut"),
    "fr_id": _by_stdnum("fr.nir"),
    "ipv4": ipv4,
    "ipv6": ipv6,
    "mac": mac,
    "assigned": assigned,
    "spoken": spoken,
    "bearer": bearer,
    "private_key": private_key,
    "jwt": jwt,
    "data_url": data_url,
    "token": token,
    "github": github,
    "aws_id": aws_id,
}
