"""Redaction that keeps the shape: messages, parts and tool arguments stay what they are, their texts do not.

Media never pass: a picture, sound or file becomes its type, size and (with a key) a digest.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from sidecar.redaction.engine import Reason, RedactionFailed, Redactor

Json = Any
Leaf = Callable[[str, str], str]
"""(text, the key it is stored under) -> what may stay of it."""

SECRET_KEYS = re.compile(
    r"(?i)(?:.*[_.-])?(?:(?:password|passwd|passphrase|passcode|pwd|pw|secret|api[_-]?key|apikey|access[_-]?key|"
    r"private[_-]?key|auth[_-]?token|access[_-]?token|refresh[_-]?token|id[_-]?token|session[_-]?token|"
    r"client[_-]?secret|cookie|credential|connection[_-]?string)s?|authorization|proxy-authorization|token|cvv|cvc|pin)\Z"
)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# In a JSON schema only these hold values; elsewhere all that lies under a secret's name is the secret.
_SCHEMA_MARKS = frozenset({"type", "description", "$ref", "anyOf", "properties"})
_VALUE_KEYS = frozenset({"default", "const", "enum", "example", "examples", "value", "values"})
_MIME = re.compile(
    r"(?:image/(?:png|jpe?g|gif|webp|bmp|svg\+xml|tiff|avif|heic)|video/(?:mp4|webm|mpeg|quicktime)|"
    r"audio/(?:wav|mp3|mpeg|ogg|flac|aac|opus|webm|m4a|mp4|pcm|pcm16)|text/(?:plain|html|csv|markdown)|"
    r"application/(?:pdf|json|octet-stream|zip))"
)
_PIECE = re.compile(r"\d{1,6}")
_MOST_PIECES = 19
_DEEPEST = 64
_NUMBER_DIGITS = range(7, 20)


class Structure:
    """Walks JSON values. ``digest`` of media and the texts go through the one redactor."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def text(self, text: str, key: str = "") -> str:
        """A string leaf. Under a key that names a secret nothing of it stays."""
        if text and is_secret(key):
            return self._redactor.token("SECRET", text)
        return self._redactor.text(text, key)

    def json_text(self, text: str, key: str = "") -> str:
        """A text that should be JSON (tool arguments): leaves and keys redacted, written back as JSON.

        What does not parse is treated as text.
        """
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return self.text(text, key)
        if isinstance(value, str):
            return json.dumps(self.text(value, key), ensure_ascii=False)
        return json.dumps(self.value(value, key), ensure_ascii=False)

    def value(self, value: Json, key: str = "", depth: int = 0) -> Json:
        """A JSON value with every string leaf, key and telling number redacted.

        Raises:
            RedactionFailed: deeper than 64 levels, or the redactor gave up.
        """
        if depth > _DEEPEST:
            raise RedactionFailed(Reason.OVER_SIZE)
        if isinstance(value, str):
            return self.text(value, key)
        if isinstance(value, dict):
            result: dict[str, Json] = {}
            schema = not _SCHEMA_MARKS.isdisjoint(value)
            named = next((v for k in ("name", "key") if isinstance(v := value.get(k), str)), "")
            for name, inner in value.items():
                shown = self._redactor.text(str(name))
                while shown in result:
                    shown += "'"
                hint = str(name)
                if is_secret(key) and not is_secret(hint) and (not schema or hint in _VALUE_KEYS):
                    hint = key
                elif hint in _VALUE_KEYS and named:
                    hint = named
                result[shown] = self.value(inner, hint, depth + 1)
            return result
        if isinstance(value, list | tuple):
            if (whole := self._pieces(value, key)) is not None:
                return [whole]
            return [self.value(inner, key, depth + 1) for inner in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return self._number(value, key)
        return value

    def _number(self, value: float, key: str) -> Json:
        if isinstance(value, float):
            if not value.is_integer() or abs(value) >= 1e19:
                return value
            written = str(int(value))
        else:
            written = str(value) if abs(value) < 10**19 else ""
        if is_secret(key) and written:
            return self._redactor.token("SECRET", written)
        if len(written.lstrip("-")) not in _NUMBER_DIGITS:
            return value
        shown = self._redactor.text(written, key)
        return value if shown == written else shown

    def _pieces(self, values: Sequence[Json], key: str) -> str | None:
        """A card's number given as a list of its groups. (Other numbers have the shapes of tensors.)"""
        if not 2 <= len(values) <= _MOST_PIECES:
            return None
        pieces = [str(v) for v in values if isinstance(v, str | int)]
        if len(pieces) < len(values) or not all(_PIECE.fullmatch(p) for p in pieces):
            return None
        written = " ".join(pieces)
        hits = self._redactor.find(written, key)
        if [(hit.kind, hit.start, hit.end) for hit in hits] == [("CARD", 0, len(written))]:
            return self._redactor.replaced(written, hits)
        return None

    def url(self, url: str) -> str:
        """Scheme, host, port and path; the path redacted, user, query and fragment gone."""
        return self._redactor.text(bare_url(url))

    def media(self, modality: str, payload: str, mime_type: str = "") -> dict[str, Json]:
        """A part that tells type and size of ``payload`` (base64, a data URL or a plain URL)."""
        part: dict[str, Json] = {"type": "blob", "modality": modality}
        if payload.startswith(("http://", "https://")):
            return {"type": "uri", "modality": modality, "uri": self.url(payload)}
        data = payload
        if payload.startswith("data:"):
            head, _, data = payload.partition(",")
            mime_type = head[5:].split(";", 1)[0]
        try:
            raw = base64.b64decode(data, validate=False)
        except (ValueError, binascii.Error):
            raw = data.encode("utf-8", errors="replace")
        if _MIME.fullmatch(mime_type):
            part["mime_type"] = mime_type
        part["size"] = len(raw)
        if digest := self._redactor.digest("DATA", raw):
            part["digest"] = digest
        return part


def is_secret(key: str) -> bool:
    """True for a key that names a secret, in whatever case its words are joined."""
    return bool(key) and bool(SECRET_KEYS.match(key) or SECRET_KEYS.match(_HUMP.sub("_", key)))


def bare_url(url: str) -> str:
    """``url`` without user, query and fragment. A text that is no URL loses all behind '?' and '#'."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return re.split(r"[?#]", url, maxsplit=1)[0] if "@" not in url else ""
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}{port}{parts.path}" if parts.scheme else parts.path
