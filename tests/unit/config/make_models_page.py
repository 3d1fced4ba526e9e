"""docs/models.md, made from the table of architectures.

`python -m tests.unit.config.make_models_page > docs/models.md`
"""

from __future__ import annotations

from types import ModuleType

from tests.models.families import FAMILIES, UNDIVIDED
from vllm_lite.config.architectures import GROUPS
from vllm_lite.config.families.architecture import Architecture

INTRODUCTION = """\
# Models

Made by `python -m tests.unit.config.make_models_page > docs/models.md` from the table of
architectures.

A checkpoint is served if its `config.json` names one of these architectures, or its GGUF header one
of the names in the last column. They share one decoder, so that all of them have continuous
batching, chunked prefill, prefix caching, tensor parallelism, quantised weights (`--quantization`),
structured output, and vectors of prompts (`--runner pooling`); what a model's shape forbids is
refused when it starts. Adapters are not available. Ranks cannot share these, which normalise all
heads, or all features, as one row:
{undivided}.

Of Gemma 3, Gemma 3n, Gemma 4, Llama 4 and Qwen3.5 that read pictures or sounds too
(`...ForConditionalGeneration`), the text part is run.

Each is compared with transformers on random tiny weights: logits within 1e-4 in float32, and the
same tokens however its requests are scheduled ([every case](models_tested.md)).

Other decoders run by transformers' own module (`--model-impl transformers`), with our linear
layers, experts, cache and scheduling, if they attend by its attention interface: BioGpt, Persimmon,
FlexOlmo, JetMoe and LongcatFlash (`...ForCausalLM`) among them. A step
takes longer, as it is not recorded, and ranks can share a model only if its `base_model_tp_plan`
splits nothing but linear layers. Models that attend in another way, or keep a state of their own,
are refused by name.
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
    columns = "| architecture | its layers keep | GGUF |\n| --- | --- | --- |"
    return "\n".join([head, columns, *map(_line, sorted(group.ROWS, key=_name)), ""])


def _name(row: Architecture) -> str:
    return row.name.lower()


def _line(row: Architecture) -> str:
    past = "latents" if "kv_lora_rank" in row.reads else PAST.get(row.windows, MIXED)
    past = past if row.mixer == "attention" else "a state"
    return f"| {row.name} | {past} | {', '.join(f'`{name}`' for name in row.gguf)} |"


if __name__ == "__main__":
    print(page(), end="")
