"""docs/models.md, made from the table of architectures.

`python -m tests.unit.config.make_models_page > docs/models.md`
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from textwrap import fill
from types import ModuleType

from tests.models.fallback_names import RUNS
from tests.models.families import FAMILIES, UNDIVIDED
from tests.models.gguf_cases import GGUF_CASES
from tests.models.gguf_files import headers
from vllm_lite.config.checkpoints.architectures import ARCHITECTURES, GGUF_ARCHITECTURES, GROUPS
from vllm_lite.config.families.architecture import Architecture

INTRODUCTION = """\
# Models

Made by `python -m tests.unit.config.make_models_page > docs/models.md` from the table of
architectures.

A checkpoint is served if its `config.json` names one of these architectures, or its GGUF header one
of the names in the column GGUF. All that write text share one scheduler, and with it continuous
batching, chunked prefill, prefix caching and structured output. Each is compared with transformers
on random tiny weights: logits within 1e-4 in float32, and the same tokens however its requests are
scheduled ([every case](models_tested.md)).

- **runs**: `native` by a family of ours, whose step is recorded, or by transformers' own module
  (`fallback`).
- **keeps**, of earlier tokens: `KV` is keys and values; `window` means that all layers, `windows`
  that some forget what a window has left, if the checkpoint has one. `latents` are those of latent
  attention, `states` of a fixed size.
- **GGUF**: `general.architecture` of the files that open as it.
- **quant**: checkpoints with quantised weights, and `--quantization` for plain ones.
- **ranks**: `--tensor-parallel-size`. Native families without it normalise all heads, or all
  features, as one row.
- **vectors**: `--runner pooling`, which gives embeddings, classes and scores ([more](pooling.md)).
- **LoRA**: adapters, which no architecture has yet.

✓ works; what does not (-), or what a model's shape forbids, is refused when it starts. Of Gemma 3,
Gemma 3n, Gemma 4, Llama 4 and Qwen3.5 that read pictures or sounds too
(`...ForConditionalGeneration`), the text part is run.
"""
FALLBACK = """\
## By transformers' own module

Other decoders run by transformers' own module (`--model-impl transformers`), with our linear
layers, experts, cache and scheduling, if they attend by its attention interface. A step takes
longer, as it is not recorded. Models that attend in another way, or keep a state of
their own, are refused by name. Other encoders, as ErnieModel and EuroBertModel, run by it too, and
`...ForSequenceClassification` and `...ForTokenClassification` with the module's own head.

Of transformers' decoders, the logits of these are compared with its own:
"""
ENCODERS = """\

Encoders answer with vectors (`embed`) or classes (`classify`), of a prompt or of each token, and
cache nothing: a prompt is computed in one step. A prompt's vector is made of its first token's
hidden state (CLS), unless sentence-transformers' files or `--pooler-config` say otherwise.
"""
# Of families whose files another architecture's class writes.
WRITTEN_AS = {"minicpm": "MiniCPMForCausalLM"}
PAST = {"none": "KV", "every": "KV, window"}
_DECODERS = "architecture runs keeps GGUF quant ranks vectors LoRA"
_POOLED = "architecture runs tasks pooling GGUF quant ranks LoRA"


def page() -> str:
    """The whole document."""
    tables = "\n".join(map(_table, GROUPS))
    checked = fill(", ".join(f"`{name}`" for name in RUNS) + ".", 100)
    other = "| any other decoder | fallback | KV, windows | - | ✓ | if its "
    other += "`base_model_tp_plan` splits linear layers alone | ✓ | - |"
    return "\n".join([INTRODUCTION, tables, FALLBACK, checked, "", _head(_DECODERS), other, ""])


def _table(group: ModuleType) -> str:
    title = str(group.__doc__).splitlines()[0].rstrip(".")
    is_decoder = group.ROWS[0].tasks[0] == "generate"
    note = "" if any(row.is_causal for row in group.ROWS) else ENCODERS
    columns, line = (_DECODERS, _line) if is_decoder else (_POOLED, _pooling_line)
    rows = sorted(group.ROWS, key=lambda row: row.name.lower())
    return "\n".join([f"## {title}\n{note}", _head(columns), *map(line, rows), ""])


def _head(columns: str) -> str:
    names = columns.split()
    return f"| {' | '.join(names)} |\n|{' --- |' * len(names)}"


def _line(row: Architecture, runs: str = "native", ranks: str = "") -> str:
    past = "latents" if "kv_lora_rank" in row.reads else PAST.get(row.windows, "KV, windows")
    past = {"attention": past, "state": "states", "both": f"states, {past}"}[row.mixer]
    cells = (row.name, runs, past, _gguf(row), "✓", ranks or _ranks(row), "✓", "-")
    return f"| {' | '.join(cells)} |"


def _pooling_line(row: Architecture) -> str:
    is_whole = set(row.tasks) & {"embed", "classify"}
    pooling = row.seq_pooling if is_whole else "ALL"
    cells = (row.name, "native", _quoted(row.tasks), pooling, _gguf(row), "✓", _ranks(row), "-")
    return f"| {' | '.join(cells)} |"


def _ranks(row: Architecture) -> str:
    undivided = {_model_class(ARCHITECTURES[FAMILIES[name].architecture]) for name in UNDIVIDED}
    return "-" if _model_class(row) in undivided else "✓"


def _model_class(row: Architecture) -> tuple[str, str]:
    return row.module, row.model_class or row.name


def _tested_files() -> dict[str, set[str]]:
    """Names in GGUF headers, and the architectures whose files are tested with them."""
    found: dict[str, set[str]] = defaultdict(set)
    for case, fields in headers().items():
        family, name = GGUF_CASES[case][0], fields["general.architecture"][2]
        told = FAMILIES[family]
        own = GGUF_ARCHITECTURES[name].name if told.rewrite else told.architecture
        found[name].add(WRITTEN_AS.get(family, own))
    return found


_TESTED = _tested_files()


def _gguf(row: Architecture) -> str:
    names = {name for name, owners in _TESTED.items() if row.name in owners}
    return _quoted(sorted(names | {name for name in row.gguf if name not in _TESTED})) or "-"


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    print(page(), end="")
