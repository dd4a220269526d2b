"""Which regions' national numbers a run of digits may be, all regions in one pass.

The patterns are phonenumbers' own metadata; its parser would do the same at a hundred times the cost.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import phonenumbers
from phonenumbers import PhoneMetadata

from sidecar.redaction.patterns import EngineMissing

try:
    import re2
except ImportError:  # see patterns.py
    re2 = None

_TYPES = (
    "fixed_line",
    "mobile",
    "toll_free",
    "premium_rate",
    "shared_cost",
    "voip",
    "personal_number",
    "pager",
    "uan",
)


class Region:
    """How one region writes its numbers."""

    def __init__(self, name: str, metadata: PhoneMetadata) -> None:
        self.name = name
        self.code = metadata.country_code
        self.prefix = metadata.national_prefix_for_parsing or metadata.national_prefix or ""
        self.rewrites = bool(metadata.national_prefix_transform_rule)
        descriptions = [getattr(metadata, kind) for kind in _TYPES]
        patterns = [d.national_number_pattern for d in descriptions if d and d.national_number_pattern]
        self.valid = "|".join(f"(?:{p})" for p in dict.fromkeys(patterns))
        self._strip = re.compile(f"(?:{self.prefix})") if self.prefix else None
        self._formats = [
            (
                re.compile(form.leading_digits_pattern[-1]) if form.leading_digits_pattern else None,
                re.compile(form.pattern or ""),
            )
            for form in metadata.number_format
        ]

    def breaks(self, digits: str) -> list[frozenset[int]]:
        """Where the region puts blanks into these digits: distances from the end, for each reading."""
        readings = [digits]
        if self._strip and (match := self._strip.match(digits)) and 0 < match.end() < len(digits):
            readings.append(digits[match.end() :])
        if digits.startswith(str(self.code)):
            readings.append(digits[len(str(self.code)) :])
        found = []
        for number in readings:
            for leading, pattern in self._formats:
                if leading is not None and not leading.match(number):
                    continue
                if match := pattern.fullmatch(number):
                    ends = [match.end(group) for group in range(1, (match.re.groups or 0) + 1)]
                    found.append(frozenset(len(number) - end for end in ends if 0 < end < len(number)))
                    break
        return found


class NationalNumbers:
    """The valid national numbers of some regions."""

    def __init__(self, regions: Sequence[str]) -> None:
        if re2 is None:
            raise EngineMissing("google-re2 is not installed")
        self._listed: list[Region] = []
        self._parsed: list[Region] = []  # only the parser can tell
        self._rewriting: list[Region] = []  # a prefix is rewritten, as in Argentina's mobiles: here too
        self._set = re2.Set.FullMatchSet()
        self._coded = re2.Set.FullMatchSet()
        for name in regions:
            metadata = PhoneMetadata.metadata_for_region(name)
            if metadata is None:
                continue
            region = Region(name, metadata)
            prefix = metadata.national_prefix if region.rewrites else region.prefix
            lead = f"(?:{prefix}|{region.code})?" if prefix else f"(?:{region.code})?"
            try:
                self._set.Add(f"{lead}(?:{region.valid})")
                self._coded.Add(f"{region.code}(?:{region.valid})")
            except re2.error:  # a look-ahead, which RE2 has not
                self._parsed.append(region)
                continue
            self._listed.append(region)
            if region.rewrites:
                self._rewriting.append(region)
        self._set.Compile()
        self._coded.Compile()

    def international(self, digits: str) -> bool:
        """Whether ``digits``, country code first, are a valid number of one of the regions."""
        return bool(self._coded.Match(digits))

    def fitting(self, digits: str, *, thorough: bool = False) -> list[Region]:
        """Regions in which ``digits`` are a valid number, with or without trunk prefix or country code.

        ``thorough``: the costly readings too, for digits that are said to be a telephone number.
        """
        found = [self._listed[i] for i in self._set.Match(digits) or ()]
        slow = [*self._parsed, *(self._rewriting if thorough and not found else ())]
        if slow and 9 <= len(digits) <= 13:
            found.extend(region for region in slow if _valid(digits, region.name))
        return found


def _valid(digits: str, region: str) -> bool:
    try:
        return phonenumbers.is_valid_number(phonenumbers.parse(digits, region))
    except phonenumbers.NumberParseException:
        return False


@functools.cache
def national_numbers(regions: tuple[str, ...]) -> NationalNumbers:
    """Made once for each list of regions."""
    return NationalNumbers(regions)
