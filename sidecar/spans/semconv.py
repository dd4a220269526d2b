"""The gen_ai conventions, one table for each version that can be chosen.

There is no package of constants for gen_ai v0.1.0, so the names are ours. A table maps our neutral key
to the version's attribute name; a key that is missing did not exist in that version.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from sidecar.errors import SettingsError

_SINCE_1_26 = {
    "operation": "gen_ai.operation.name",
    "provider": "gen_ai.system",
    "request_model": "gen_ai.request.model",
    "max_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "stop_sequences": "gen_ai.request.stop_sequences",
    "seed": "gen_ai.request.seed",
    "choice_count": "gen_ai.request.choice.count",
    "output_type": "gen_ai.output.type",
    "conversation_id": "gen_ai.conversation.id",
    "response_id": "gen_ai.response.id",
    "response_model": "gen_ai.response.model",
    "finish_reasons": "gen_ai.response.finish_reasons",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "encoding_formats": "gen_ai.request.encoding_formats",
    "error_type": "error.type",
    "server_address": "server.address",
    "server_port": "server.port",
}
_SINCE_1_37 = {
    "provider": "gen_ai.provider.name",
    "input_messages": "gen_ai.input.messages",
    "output_messages": "gen_ai.output.messages",
    "system_instructions": "gen_ai.system_instructions",
    "tool_definitions": "gen_ai.tool.definitions",
    "cache_read": "gen_ai.usage.cache_read.input_tokens",
    "cache_write": "gen_ai.usage.cache_creation.input_tokens",
    "stream": "gen_ai.request.stream",
    "time_to_first_chunk": "gen_ai.response.time_to_first_chunk",
    "reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
}
_SINCE_0_1 = {
    "cache_write": "gen_ai.usage.cache_write.input_tokens",
    "reasoning_level": "gen_ai.request.reasoning.level",
    "previous_response_id": "gen_ai.request.previous_response.id",
}
# Names of metrics by neutral key. Only the three server metrics never changed.
_SERVER_METRICS = {
    "server_duration": "gen_ai.server.request.duration",
    "server_ttft": "gen_ai.server.time_to_first_token",
    "server_tpot": "gen_ai.server.time_per_output_token",
}
_OLD_CLIENT_METRICS = {
    "client_duration": "gen_ai.client.operation.duration",
    "client_first_chunk": "gen_ai.client.operation.time_to_first_chunk",
    "client_chunk": "gen_ai.client.operation.time_per_output_chunk",
}
_NEW_CLIENT_METRICS = {
    "client_duration": "gen_ai.client.inference.duration",
    "client_first_chunk": "gen_ai.client.inference.time_to_first_chunk",
    "client_chunk": "gen_ai.client.inference.time_per_output_chunk",
    "usage_input": "gen_ai.client.inference.usage.input_tokens",
    "usage_output": "gen_ai.client.inference.usage.output_tokens",
    "usage_cache_read": "gen_ai.client.inference.usage.cache_read.input_tokens",
    "usage_reasoning": "gen_ai.client.inference.usage.reasoning.output_tokens",
}


@dataclass(frozen=True, slots=True)
class Convention:
    """One pinned version: its schema URL, attribute and metric names by neutral key."""

    version: str
    schema_url: str
    names: MappingProxyType[str, str]
    metrics: MappingProxyType[str, str]
    top_k_is_int: bool


def _table(
    version: str, schema_url: str, *parts: dict[str, str], metrics: dict[str, str], top_k_is_int: bool = False
) -> Convention:
    names: dict[str, str] = {}
    for part in parts:
        names.update(part)
    return Convention(
        version,
        schema_url,
        MappingProxyType(names),
        MappingProxyType(_SERVER_METRICS | metrics),
        top_k_is_int,
    )


CONVENTIONS: MappingProxyType[str, Convention] = MappingProxyType(
    {
        "v0.1.0": _table(
            "v0.1.0",
            "https://opentelemetry.io/schemas/gen-ai-dev/0.1.0-dev",
            _SINCE_1_26,
            _SINCE_1_37,
            _SINCE_0_1,
            metrics=_NEW_CLIENT_METRICS,
            top_k_is_int=True,
        ),
        "v1.41": _table(
            "v1.41",
            "https://opentelemetry.io/schemas/1.41.0",
            _SINCE_1_26,
            _SINCE_1_37,
            metrics=_OLD_CLIENT_METRICS,
        ),
        "v1.36": _table(
            "v1.36",
            "https://opentelemetry.io/schemas/1.36.0",
            _SINCE_1_26,
            metrics={"client_duration": "gen_ai.client.operation.duration"},
        ),
    }
)
DEFAULT_VERSION = "v0.1.0"

# Every name that was ever emitted for a neutral key, vLLM's own included: understood on input.
_OLD_NAMES = {
    "gen_ai.system": "provider",
    "gen_ai.provider.name": "provider",
    "gen_ai.usage.prompt_tokens": "input_tokens",
    "gen_ai.usage.completion_tokens": "output_tokens",
    "gen_ai.usage.cache_creation.input_tokens": "cache_write",
    "gen_ai.request.n": "choice_count",
    "gen_ai.request.id": "response_id",
    "gen_ai.openai.request.seed": "seed",
    "gen_ai.openai.request.response_format": "output_type",
    "llm.request.model": "request_model",
    "llm.usage.prompt_tokens": "input_tokens",
    "llm.usage.completion_tokens": "output_tokens",
}
NEUTRAL: MappingProxyType[str, str] = MappingProxyType(
    {name: key for table in CONVENTIONS.values() for key, name in table.names.items()} | _OLD_NAMES
)
"""Attribute name of any version -> neutral key."""


def convention(version: str) -> Convention:
    """The table of a version.

    Raises:
        SettingsError: no such version.
    """
    try:
        return CONVENTIONS[version]
    except KeyError:
        raise SettingsError(f"semconv: {version!r} is not one of {', '.join(CONVENTIONS)}") from None
