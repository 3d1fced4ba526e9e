"""Pooling and normalization of hidden states, as a checkpoint describes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from vllm_lite.config.facts import ModelFacts
from vllm_lite.config.json_file import read_json
from vllm_lite.errors import UsageError

_KNOWN = {"Transformer", "Pooling", "Normalize"}


class _Module(msgspec.Struct):
    type: str
    path: str = ""


def with_pooling(facts: ModelFacts, runner: str, convert: str) -> ModelFacts:
    """`facts` with what sentence-transformers' modules.json says, if the model is run to pool.

    Raises UsageError for options that do not fit each other, and for modules beyond the last
    token's hidden state, divided by its length or not.
    """
    if runner != "pooling":
        if convert == "embed":
            raise UsageError("--convert embed needs --runner pooling")
        return facts
    if convert == "none":
        raise UsageError(
            f"--convert none: {facts.architecture} generates text, and with --runner pooling is "
            "made to embed it; leave --convert out"
        )
    path = Path(facts.path) / "modules.json"
    if not path.is_file():
        return facts
    modules = _read_modules(path)
    for name, folder in modules.items():
        pooling = read_json(path.parent / folder / "config.json") if name == "Pooling" else {}
        modes = [key for key, value in pooling.items() if key.startswith("pooling_mode") and value]
        if name not in _KNOWN or modes not in ([], ["pooling_mode_lasttoken"]):
            raise UsageError(
                f"{path} makes vectors with {', '.join(modes) or name}; --runner pooling takes the "
                "last token's hidden state alone"
            )
    return replace(facts, normalizes_vectors="Normalize" in modules)


def _read_modules(path: Path) -> dict[str, str]:
    """The last words of the modules' types, and their folders."""
    try:
        listed = msgspec.json.decode(path.read_bytes(), type=list[_Module])
    except (msgspec.DecodeError, OSError) as error:
        raise UsageError(f"{path} cannot be read ({error}); fetch it again") from None
    return {module.type.rpartition(".")[2]: module.path for module in listed}
