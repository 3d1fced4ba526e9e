"""docs/models.md, made from the table of architectures.

`python -m tests.unit.config.make_models_page > docs/models.md`
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

from tests.models.families import FAMILIES, UNDIVIDED
from vllm_lite.config.architectures import GROUPS
from vllm_lite.config.families.architecture import Architecture

INTRODUCTION = """\
# Models

Made by `python -m tests.unit.config.make_models_page > docs/models.md` from the table of
architectures.

A checkpoint is served if its `config.json` names one of these architectures, or its GGUF header one
of the names in the last column. They share one decoder, so that all that write text have continuous
batching, chunked prefill, prefix caching, tensor parallelism, quantised weights (`--quantization`),
structured output, and vectors of prompts (`--runner pooling`); what a model's shape forbids is
refused when it starts. Adapters are not available. Ranks cannot share these, which normalise all
heads, or all features, as one row:
{undivided}.

Encoders answer with vectors (`embed`) or classes (`classify`), of a prompt or of each token, and
cache nothing: a prompt is computed in one step. A prompt's vector is made of its first token's
hidden state (CLS), unless sentence-transformers' files or `--pooler-config` say otherwise.

Of Gemma 3, Gemma 3n, Gemma 4, Llama 4 and Qwen3.5 that read pictures or sounds too
(`...ForConditionalGeneration`), the text part is run.

Each is compared with transformers on random tiny weights: logits within 1e-4 in float32, and the
same tokens however its requests are scheduled ([every case](models_tested.md)).

Other decoders run by transformers' own module (`--model-impl transformers`), with our linear
layers, experts, cache and scheduling, if they attend by its attention interface: BioGpt, Persimmon,
JetMoe and LongcatFlash (`...ForCausalLM`) among them. A step
takes longer, as it is not recorded, and ranks can share a model only if its `base_model_tp_plan`
splits nothing but linear layers. Models that attend in another way, or keep a state of their own,
are refused by name. Other encoders, as ErnieModel and EuroBertModel, run by it too, and
`...ForSequenceClassification` and `...ForTokenClassification` with the module's own head.
"""
PAST = {"none": "keys and values", "every": "keys and values, of a window if it has one"}
MIXED = "keys and values, in some layers of a window if it has one"


def page() -> str:
    """The whole document."""
    undivided = ", ".join(sorted({FAMILIES[name].architecture for name in UNDIVIDED}))
    names = undivided.replace("ForCausalLM", "")
    return "\n".join([INTRODUCTION.format(undivided=names), *map(_table, GROUPS)])


def _table(group: ModuleType) -> str:
    head = f"## {str(group.__doc__).splitlines()[0].rstrip('.')}\n"
    columns, line = "| architecture | its layers keep | GGUF |\n| --- | --- | --- |", _line
    if group.ROWS[0].tasks[0] != "generate":
        columns = "| architecture | tasks | pooling | GGUF |\n| --- | --- | --- | --- |"
        line = _pooling_line
    return "\n".join([head, columns, *map(line, sorted(group.ROWS, key=_name)), ""])


def _name(row: Architecture) -> str:
    return row.name.lower()


def _line(row: Architecture) -> str:
    past = "latents" if "kv_lora_rank" in row.reads else PAST.get(row.windows, MIXED)
    past = past if row.mixer == "attention" else "a state"
    return f"| {row.name} | {past} | {_quoted(row.gguf)} |"


def _pooling_line(row: Architecture) -> str:
    is_whole = set(row.tasks) & {"embed", "classify"}
    pooling = row.seq_pooling if is_whole else "ALL"
    return f"| {row.name} | {_quoted(row.tasks)} | {pooling} | {_quoted(row.gguf)} |"


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    print(page(), end="")
