"""The canonical form of a constraint, and a digest of it.

Runs where requests come in. Finds what needs no grammar engine: text that is no JSON, options
that contradict each other. Invariant: equal names mean equal grammars.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import msgspec

from vllm_lite.structured_output.schema import MAX_DEPTH
from vllm_lite.structured_outputs_params import (
    MAX_CONSTRAINT_CHARACTERS,
    StructuredOutputsParams,
    refused,
)

if TYPE_CHECKING:
    from vllm_lite.config.structured_outputs import StructuredOutputsConfig
    from vllm_lite.sampling_params import SamplingParams

# Subclasses of str count as str.
_encoder = msgspec.msgpack.Encoder(enc_hook=str)


def canonical(
    params: StructuredOutputsParams, config: StructuredOutputsConfig
) -> StructuredOutputsParams:
    """`params` with the engine's own options in it and JSON as compact text.

    Raises RequestError that names the field.
    """
    tag, schema = params.structural_tag, params.json
    is_json = schema is not None or bool(params.json_object) or tag is not None
    if params.whitespace_pattern is not None:
        if not is_json:
            rule = "goes with json, json_object or structural_tag only"
            raise refused("whitespace_pattern", rule)
        if params.disable_any_whitespace:
            raise refused("whitespace_pattern", "contradicts disable_any_whitespace")
    is_compact = params.disable_any_whitespace or (
        config.disable_any_whitespace and params.whitespace_pattern is None
    )
    is_closed = params.disable_additional_properties or config.disable_additional_properties
    return StructuredOutputsParams(
        json=None if schema is None else _json_text("json", schema),
        regex=params.regex,
        choice=params.choice,
        grammar=params.grammar,
        json_object=params.json_object or None,
        structural_tag=None if tag is None else _json_text("structural_tag", tag),
        disable_any_whitespace=is_json and is_compact,
        disable_additional_properties=is_closed and (schema is not None or tag is not None),
        whitespace_pattern=params.whitespace_pattern,
        enable_in_reasoning=params.enable_in_reasoning or config.enable_in_reasoning,
    )


def name_of(params: StructuredOutputsParams | SamplingParams) -> bytes:
    """A digest of what decides over a grammar, or over a request's use of it, to keep it by."""
    if isinstance(params, StructuredOutputsParams):
        # The grammar is the same whenever it begins.
        params = msgspec.structs.replace(params, enable_in_reasoning=False)
    return hashlib.sha256(_encoder.encode(params)).digest()


def _json_text(field: str, value: str | dict[str, Any]) -> str:
    """JSON as compact text; keys keep their order, in which an object's keys are generated."""
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
        text = json.dumps(parsed, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        text.encode()
    except RecursionError:
        raise refused(field, f"is nested deeper than {MAX_DEPTH} levels") from None
    except (ValueError, TypeError) as error:
        raise refused(field, f"is not valid JSON: {error}"[:200]) from None
    if not isinstance(parsed, dict) and not (field == "json" and isinstance(parsed, bool)):
        raise refused(field, "must be a JSON object")
    if len(text) > MAX_CONSTRAINT_CHARACTERS:
        rule = f"must have at most {MAX_CONSTRAINT_CHARACTERS} characters, got {len(text)}"
        raise refused(field, rule)
    return text
