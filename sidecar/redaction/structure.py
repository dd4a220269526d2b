"""Redaction that keeps the shape: messages, parts and tool arguments stay what they are, their texts do not.

Media never pass: a picture, sound or file becomes its type, size and (with a key) a digest.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from sidecar.redaction.engine import Reason, RedactionFailed, Redactor

Json = Any
Leaf = Callable[[str, str], str]
"""(text, the key it is stored under) -> what may stay of it."""

SECRET_KEYS = re.compile(
    r"(?i)(?:.*[_.-])?(?:password|passwd|passphrase|pwd|secret|api[_-]?key|apikey|access[_-]?key|private[_-]?key|"
    r"auth[_-]?token|access[_-]?token|refresh[_-]?token|id[_-]?token|session[_-]?token|client[_-]?secret|"
    r"authorization|proxy-authorization|cookie|set-cookie|x-api-key|credentials?|token|connection[_-]?string)\Z"
)
_DEEPEST = 64
_NUMBER_DIGITS = range(7, 20)


class Structure:
    """Walks JSON values. ``digest`` of media and the texts go through the one redactor."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def text(self, text: str, key: str = "") -> str:
        """A string leaf. Under a key that names a secret nothing of it stays."""
        if key and text and SECRET_KEYS.match(key):
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
            for name, inner in value.items():
                shown = self._redactor.text(str(name))
                while shown in result:
                    shown += "'"
                result[shown] = self.value(inner, str(name), depth + 1)
            return result
        if isinstance(value, list | tuple):
            return [self.value(inner, key, depth + 1) for inner in value]
        if isinstance(value, int) and not isinstance(value, bool) and len(str(abs(value))) in _NUMBER_DIGITS:
            if key and SECRET_KEYS.match(key):
                return self._redactor.token("SECRET", str(value))
            shown = self._redactor.text(str(value), key)
            return value if shown == str(value) else shown
        return value

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
        if re.fullmatch(r"[a-z]+/[a-z0-9.+-]{1,60}", mime_type):
            part["mime_type"] = mime_type
        part["size"] = len(raw)
        if digest := self._redactor.digest("DATA", raw):
            part["digest"] = digest
        return part


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
