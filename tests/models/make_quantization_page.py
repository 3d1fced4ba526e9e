"""docs/quantization.md, made from the readers, the forms in flight, what tests read, and results.

`python -m tests.models.make_quantization_page > docs/quantization.md`
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.models.demo_checkpoints import ALIKE, CHECKPOINTS
from tests.models.test_aqlm import FORMS as AQLM
from tests.models.test_in_flight import FORMS
from tests.models.test_integer_checkpoints import FORMATS
from tests.models.test_quantized import KINDS
from tests.models.test_quantized_checkpoints import PACKED, TERNARY
from tests.models.test_stored_codes import CASES
from vllm_lite.config.model import LoadConfig, ModelConfig
from vllm_lite.config.options.option import Option, options
from vllm_lite.config.quantized.in_flight import BLOCKS, CODES, EXPERTS
from vllm_lite.config.quantized.registry import HARDWARE
from vllm_lite.errors import UsageError
from vllm_lite.quantization.ggml_blocks import CONVERTERS
from vllm_lite.quantization.online import OTHERS

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "format_perplexity.json"
INTRO = """\
# Quantised weights and load formats

Made by `python -m tests.models.make_quantization_page > docs/quantization.md` from the table of
readers, what the tests read, and the results of `benchmarks/format_perplexity.py`.

A checkpoint says how it is quantised (`quantization_config` in `config.json`, or a file beside it:
`hf_quant_config.json`, `quantize_config.json` or `quant_config.json`), so that `--quantization` may
be left out; a name that contradicts it is an error. A plain checkpoint is rounded as it is loaded
if `--quantization` names a form in flight; `--quantization-config` says which layers: `linear`,
`moe`, `ignore`, `targets`, by names as the checkpoint has them. An option that rounds no layer is
an error. Where groups do not divide a layer's inputs, the last one is shorter; of GGUF's blocks,
layers whose inputs 32 does not divide stay plain, with a warning.

Weights are kept in one of these forms, and multiplied in that form:

{forms}

Inputs are rounded where the format says so: by token, by group, or by the checkpoint's scale. Those
of a mixture's experts are not, whatever the format says (W8A8, fp8): an expert's codes are widened
within the product and multiplied by inputs as they are, which is nearer to the model that was
quantised; what a CPU multiplies as GGUF's types is the exception. `--quantization dequantize`
expands everything to `--dtype` instead. Embeddings and heads stay as they are stored. Layers that
are fused here (q, k and v; gate and up) must be stored alike: else one error names both. A
checkpoint's scales of cached keys and values are used by `--kv-cache-dtype fp8`, and left out with
a warning by others; those for another cache than 8-bit floats (int8, NVFP4) are always left out,
and an error with fp8.
"""
PERPLEXITY = """\
Its weights began as Q4_1, which flatters 4 bits: `int4`, of the same grid, loses almost nothing,
which says nothing of a model that was never in 4 bits; grids that fall between those values, as
Q5_1's, lose more than they would there. Each weight takes its nearest value: what a tool finds from
data (AWQ's scales, GPTQ's order, importance) is not there, and so small a model loses more than a
large one: act-order's order is random, AQLM's one book holds every choice of four values for eight
inputs, and static scales of inputs are from the text's first 512 tokens. Groups are of 64 inputs
where no other number is named, as 128 does not divide 576. Nor does 256: of K, IQ and TQ types are
the down projections alone (1,536 inputs), in a GGUF file whose other layers are Q8_0; in flight the
other layers take another type, as the table above says. Inputs of integers that GGUF's kernels
multiply are rounded besides, as the first table says. A layout "as" another holds its numbers in
another order or by other names; tests compare their logits.
"""
KEPT = (
    ("form", "what is kept", "on a CPU", "on a GPU"),
    (
        "integers in groups",
        "codes of 2 to 8 bits, a scale for each group or output, zero points, an order of inputs; "
        "groups are padded to a multiple of 16 inputs, and those of fewer than 8, which would take "
        "as much as bfloat16 or more, are dequantised with a warning",
        "codes are widened within the product; in float32, and without AMX, those that GGUF's "
        "Q4_0, Q5_0 or Q8_0 hold exactly are multiplied as such, of inputs rounded to int8 in "
        "groups of 32; those with zero points or of 2 or 3 bits only without AVX512-BF16",
        "Triton, widened within the product; int8 by int8 where inputs are int8",
    ),
    (
        "block floats",
        "codes of fp8, fp6 or fp4, scales of a tensor, an output, or a block",
        "widened within the product",
        "Triton, widened within the product; fp8 by fp8 where inputs are fp8",
    ),
    (
        "code tables",
        "4 bits that choose of 16 values, a scale for each block",
        "looked up within the product",
        "Triton, looked up within the product",
    ),
    (
        "codebooks",
        "indices of vectors of 8 inputs in books, a scale for each output",
        "looked up within the product",
        "Triton, looked up within the product",
    ),
    (
        "GGUF's blocks",
        "as in the file",
        "inputs are rounded to int8 in groups of 32",
        "Triton, widened within the product",
    ),
)


@dataclass(frozen=True, slots=True)
class Row:
    """Names of --quantization for one kind of checkpoint, and a test that reads such a one.

    `methods` are what checkpoints call it.
    """

    names: tuple[str, ...]
    methods: tuple[str, ...]
    opens: str
    kept: str
    refused: str
    test: str


_INTEGERS = "tests/models/test_integer_checkpoints.py::"
_EXACT = _INTEGERS + "test_a_layout_is_worth_what_its_tool_stored"
_NAMES = _INTEGERS + "test_names_of_kernels_stand_for_the_checkpoints_they_read"
_VALUES = "tests/models/test_stored_codes.py::test_values_are_exact"
_FORMATS = "tests/models/test_load_formats.py::"
_REFUSED = "tests/unit/config/test_resolve.py::test_what_this_build_cannot_do_is_refused_by_option"
_STRATEGIES = _FORMATS + "test_strategies_change_no_weight"
_IN_FLIGHT = "tests/models/test_in_flight.py::"
_FLOATS = "block floats"
ROWS = (
    Row(
        ("awq", "awq_marlin", "auto_awq", "moe_wna16"),
        ("awq",),
        "4 bits, with zero points; layouts gemm, of groups of any size, and gemv and "
        "gemv_fast, of 16 or a multiple of 32; `modules_to_not_convert`",
        "integers in groups",
        "other bits and layouts",
        _NAMES,
    ),
    Row(
        ("gptq", "gptq_marlin", "auto_gptq", "bitblas", "gptq_bitblas", "marlin", "gptq_marlin_24"),
        ("gptq", "marlin"),
        "2, 3, 4 and 8 bits, groups of any size, act-order, symmetric or not, zero points of v1 "
        "and v2, `dynamic` rules, Marlin's tiles and its 2:4 sparse ones, BitBLAS's 2 and 4 bits "
        "for inputs of float16 and bfloat16",
        "integers in groups; of sparse ones the zeros too",
        "other bits; groups of Marlin's tiles and of BitBLAS that are neither 16 nor a multiple of "
        "32; BitBLAS's 8 bits, which its tools write as signed numbers or as codes from zero",
        _EXACT,
    ),
    Row(
        ("inc", "auto-round", "intel/auto-round", "ipex"),
        ("auto-round",),
        "packed as GPTQ or AWQ, with bits by layer",
        "integers in groups",
        "other packing formats",
        _INTEGERS + "test_rules_give_layers_other_bits_or_none",
    ),
    Row(
        ("compressed-tensors",),
        ("compressed-tensors",),
        "integers of 2 to 8 bits, int8, fp8 of tensors, outputs and blocks, MXFP4, MXFP6, MXFP8, "
        "NVFP4, with inputs as they are or rounded, to four bits too; act-order, 2:4 sparse, "
        "scales of the cache, of layers or of heads, also alone",
        "as integers in groups or block floats",
        "transforms of inputs, by name; static scales of inputs of fewer than eight bits",
        _VALUES,
    ),
    Row(
        ("fp8", "deepseek_v4_fp8", "fbgemm_fp8", "mxfp8"),
        ("fp8", "fbgemm_fp8", "mxfp8"),
        "E4M3 with static or dynamic inputs; scales of a tensor, an output, a block, or powers of "
        "two for 32; inputs' scales that are powers of two (`scale_fmt` ue8m0); routed experts in "
        "MXFP4 (`expert_dtype` fp4); scales of the cache",
        _FLOATS,
        "blocks that a fused layer's parts cut",
        _VALUES,
    ),
    Row(
        ("modelopt", "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8", "petit_nvfp4"),
        ("modelopt",),
        "FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, NVFP4, NVFP4_AWQ, W4A16_NVFP4, W4A16_AWQ, "
        "W4A8_AWQ, MXFP8, mixtures by layer, factors of inputs (`pre_quant_scale`), scales of the "
        "cache, also alone",
        _FLOATS + ", integers in groups",
        "other algorithms, by name; factors of experts' inputs",
        _VALUES,
    ),
    Row(
        ("quark",),
        ("quark",),
        "fp8, int8, fp4, fp6_e2m3, fp6_e3m2 for weights and for inputs, mixtures by layer, scales "
        "of the cache",
        _FLOATS + ", integers",
        "dynamic weights",
        "tests/models/test_stored_codes.py::test_layers_of_a_quark_checkpoint_are_mixed",
    ),
    Row(
        ("gpt_oss_mxfp4",),
        ("mxfp4",),
        "gpt-oss: experts in MXFP4, the rest plain",
        _FLOATS,
        "",
        "tests/models/test_experts.py::test_experts_may_be_floats_of_four_bits",
    ),
    Row(
        ("hqq",),
        ("hqq",),
        "2, 3, 4 and 8 bits, axis 1, from safetensors",
        "integers in groups, with zero points that are floats",
        "pickles; axis 0",
        _EXACT,
    ),
    Row(
        ("torchao",),
        ("torchao",),
        "int1 to int8 and fp8 of weights, int8 and fp8 of inputs, by layer, from safetensors",
        "integers in groups, " + _FLOATS,
        "pickles; packings for one kind of GPU",
        _EXACT,
    ),
    Row(
        ("aqlm",),
        ("aqlm",),
        "sums of vectors of eight inputs: one book of 16 bits, or two of 8",
        "codebooks",
        "other books",
        "tests/models/test_aqlm.py::test_aqlm_computes_what_its_books_say",
    ),
    Row(
        ("qqq",),
        ("qqq",),
        "W4A8 in Marlin's tiles",
        "integers in groups; inputs stay as they are",
        "other bits",
        _EXACT,
    ),
    Row(
        (),
        ("bitnet",),
        "three values, packed or as floats",
        "GGUF's TQ2_0 where 256 divides the inputs",
        "",
        "tests/models/test_quantized_checkpoints.py::"
        "test_three_values_are_kept_in_two_bits_where_rows_are_whole_blocks",
    ),
    Row(
        ("gguf",),
        ("gguf",),
        "`.gguf` files, also in parts, of every type that llama.cpp writes",
        "GGUF's blocks",
        "types that are not known, by number",
        "tests/models/test_quantized.py::test_every_storage_type",
    ),
    Row(
        ("dequantize",),
        (),
        "any of these, expanded as it is loaded",
        "`--dtype`",
        "plain checkpoints",
        _EXACT,
    ),
)
# Forms in flight, and of bitsandbytes' checkpoints too.
FLIGHTS = {
    "bitsandbytes": "as nf4, or int8 with a scale for each output where `--hf-overrides` has a "
    "`quantization_config` with `load_in_8bit`; checkpoints of LLM.int8, nf4 and fp4, double "
    "quantised too, stay so; pickles are refused",
    "experts_int8": "a mixture's experts alone, to int8 with a scale for each output",
    "rtn": "int8 in groups of 128, or of 64, 32 or 16 where one of these divides a layer's inputs",
}
# GGUF's types whose models, of weights that are plainly rounded, differ from themselves
# dequantised by more than LIMIT percent.
BEYOND = ("IQ2_XXS", "IQ1_S", "TQ1_0", "TQ2_0", "Q2_0")
LIMIT = 0.5
STORED = "checkpoint"  # its part of the results
LOADS = {
    "auto": (
        "safetensors, else Mistral's files, else pickles",
        _STRATEGIES,
    ),
    "hf": ("as auto", _FORMATS + "test_pickled_weights_are_read_with_a_warning"),
    "safetensors": (
        "`*.safetensors`, by their index",
        _STRATEGIES,
    ),
    "mistral": (
        "`consolidated*.safetensors`",
        "tests/models/test_mistral_layout.py::test_both_layouts_are_one_model",
    ),
    "pt": (
        "pickles, by `torch.load(weights_only=True, mmap=True)`, with a warning",
        _FORMATS + "test_pickled_weights_are_read_with_a_warning",
    ),
    "npcache": (
        "pickles, copied once to files for NumPy beside them",
        _FORMATS + "test_numpys_copies_are_read_until_the_weights_change",
    ),
    "dummy": (
        "nothing: random weights",
        "tests/models/test_loading.py::test_dummy_weights_depend_on_the_seed_alone",
    ),
    "gguf": ("a `.gguf` file", "tests/models/test_gguf.py::test_every_storage_type"),
    "bitsandbytes": (
        "as `--quantization bitsandbytes`",
        _IN_FLIGHT + "test_bitsandbytes_rounds_a_plain_checkpoint",
    ),
    "sharded_state": (
        "what `LLM.save_sharded_state` wrote, a rank's own files",
        _FORMATS + "test_a_sharded_state_gives_the_same_tokens",
    ),
    "tensorizer": ("`*.tensors`, by its package", _FORMATS + "test_packages_read_the_same_weights"),
    "runai_streamer": (
        "safetensors, by its package: a tensor at a time unless `memory_limit` says otherwise",
        _FORMATS + "test_packages_read_the_same_weights",
    ),
    "runai_streamer_sharded": (
        "a sharded state, by the same",
        _FORMATS + "test_a_sharded_state_may_be_streamed",
    ),
    "fastsafetensors": (
        "safetensors, by its package, which holds a file whole meanwhile",
        _FORMATS + "test_packages_read_the_same_weights",
    ),
    "instanttensor": ("", _REFUSED),
    "ipc_cache": ("", _REFUSED),
    "modelexpress": ("", _REFUSED),
}


def option_of(owner: type, name: str) -> Option:
    """A declared option."""
    return next(entry for entry in options(owner) if entry.name == name)


def readable(names: Iterable[str]) -> list[str]:
    """Those of --quantization that work."""
    works = option_of(ModelConfig, "quantization").rules["choices"]
    return [name for name in names if name in works]


def cases(row: Row) -> list[str]:
    """Names of the tests' cases that read the row's methods."""
    found = [
        name
        for name, case in [*FORMATS.items(), *PACKED.items(), *CASES.items()]
        if case[0]["quant_method"] in row.methods
    ]
    found += TERNARY if "bitnet" in row.methods else ()
    found += [kind.name for kind in KINDS if "gguf" in row.methods]
    found += AQLM if "aqlm" in row.methods else ()
    found += ("gpt-oss",) if "mxfp4" in row.methods else ()
    return list(dict.fromkeys(found))


def in_flight() -> dict[str, tuple[str, str]]:
    """Forms that plain checkpoints are rounded to: what each is, and its test."""
    found = {}
    for name, form in CODES.items():
        rows, columns = form.block
        of = {None: "the tensor", 1: "each output"}.get(rows, f"each {rows} by {columns}")
        if rows == 1 and columns:
            of = f"each {columns} inputs"
        number = form.number.removeprefix("float8_").removeprefix("float4_")
        text = f"{number if number != 'int' else 'int8'} with a scale for {of}"
        test = "test_codes_are_those_of_the_formats_writer_and_take_its_memory"
        is_tested = name in FORMS
        if form.rounding is not None:
            text += f", inputs rounded to int8 for each {form.rounding.scope}"
            text += "" if form.rounding.is_symmetric else ", from its least value to its greatest"
            test, is_tested = "test_inputs_are_rounded_for_each_token_where_the_name_says_so", True
        found[name] = (FLIGHTS.get(name, text), _IN_FLIGHT + test if is_tested else "")
    for name, kind in BLOCKS.items():
        test = _IN_FLIGHT + "test_blocks_are_gguf_s_and_near_the_weights"
        other = f"; {OTHERS[kind]} for inputs that 256 does not divide" if kind in OTHERS else ""
        found[name] = (
            f"GGUF's {kind}, embedding and head Q8_0{other}",
            test if kind in CONVERTERS else "",
        )
    for name in EXPERTS:
        found[name] = (
            FLIGHTS[name],
            _IN_FLIGHT + "test_experts_may_be_rounded_unlike_other_layers",
        )
    return found


def refusal_of(load_format: str) -> str:
    """The refusal of a load format; "" where it works."""
    try:
        LoadConfig(load_format=load_format)  # type: ignore[arg-type]
        option_of(LoadConfig, "load_format").check(load_format)
    except UsageError as error:
        return str(error)
    return ""


def page() -> str:
    """The whole document."""
    intro = INTRO.replace("{forms}\n", _table(KEPT[0], KEPT[1:]))
    parts = [intro, "## Checkpoints\n", _checkpoints(), "## In flight\n", _in_flight()]
    parts += ["## What is refused\n", _refused(), "## Load formats\n", _loads()]
    parts += ["## Perplexity\n", *_perplexity()]
    return "\n".join(parts)


def _table(head: tuple[str, ...], lines: Iterable[tuple[str, ...]]) -> str:
    rows = [head, ("---",) * len(head), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows) + "\n"


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _checkpoints() -> str:
    head = ("`--quantization`", "what opens", "kept as", "refused", "read in tests")
    lines = [
        (_quoted(names) or "none", row.opens, row.kept, row.refused, "; ".join(cases(row)))
        for row in ROWS
        if (names := readable(row.names)) or not row.names
    ]
    return _table(head, lines)


def _in_flight() -> str:
    groups: dict[str, list[str]] = {}
    for name, (text, _) in in_flight().items():
        groups.setdefault(text, []).append(name)
    lines = [(_quoted(names), text) for text, names in groups.items()]
    return _table(("`--quantization`", "layers become"), lines)


def _refused() -> str:
    lines = [(f"`{name}`", f"it is for {hardware} alone") for name, hardware in HARDWARE.items()]
    choices = option_of(ModelConfig, "quantization").choices
    absent = [name for name in choices if name not in readable(choices)]
    lines += [(f"`{name}`", "not in this build") for name in absent]
    return _table(("`--quantization`", "why"), lines)


def _loads() -> str:
    lines = [(f"`{name}`", refusal_of(name) or text) for name, (text, _) in LOADS.items()]
    return _table(("`--load-format`", "what is read, or why not"), lines)


def _perplexity() -> Iterator[str]:
    content = json.loads(RESULTS.read_text())
    results: list[dict[str, Any]] = content["results"]
    count = "all" if content["windows"] is None else f"the first {content['windows']}"
    yield (
        "By `benchmarks/format_perplexity.py`, of the demo model (SmolLM2-135M, 576 inputs a\n"
        f"layer): {count} windows of {content['window']} tokens of its text, in float32, on an\n"
        f"{content['machine']['processor']}.\n"
    )
    yield PERPLEXITY
    yield _table(
        ("form", "perplexity"),
        [("float32", f"{each['perplexity']:.2f}") for each in results if each["part"] == "plain"],
    )
    head = ("form", "inputs by the format", "perplexity", "of float32")
    yield "### Rounded in flight\n"
    yield _table(head, (_scored(each) for each in results if each["part"] == "in flight"))
    yield "### As checkpoints have them\n"
    yield _table(head, _stored({each["name"]: each for each in results if each["part"] == STORED}))
    files = [each for each in results if each["part"] == "GGUF"]
    if files:
        yield "### GGUF files as they are\n"
        yield (
            "The last column compares with the same file dequantised; its limit is 0.5 %. All "
            f"values count\nalike: types of less than three bits need importance, or a model that "
            f"was trained for them.\n{', '.join(BEYOND)} miss the limit: their\nmodels are lost, "
            "and the logits of such a one answer most to inputs that are rounded to int8 in\n"
            "groups of 32, as those of every type are.\n"
        )
        lines = [(each["name"], _number(each), *_changes(each)) for each in files]
        yield _table(("type", "perplexity", "of float32", "of itself dequantised"), lines)


def _stored(found: dict[str, dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Measured formats in order, after each one those that have the same numbers."""
    for name in filter(found.__contains__, CHECKPOINTS):
        _, inputs, number, change = _scored(found[name])
        yield name, inputs, number, change
        for other, (own, _, _) in ALIKE.items():
            if own == name:
                yield other, inputs, number, f"as {name}"


def _scored(each: dict[str, Any]) -> tuple[str, ...]:
    return each["name"], each["inputs"] or "as they are", _number(each), _change(each)


def _number(each: dict[str, Any]) -> str:
    if each["perplexity"] is None:
        return "does not fit: " + str(each["refusal"]).partition(";")[0]
    return f"{each['perplexity']:,.2f}" if each["perplexity"] < 1e5 else "more than 100,000"


def _change(each: dict[str, Any]) -> str:
    return _percent(each["change_percent"])


def _changes(each: dict[str, Any]) -> tuple[str, str]:
    """Of a GGUF file: of float32, and of itself dequantised."""
    return _change(each), _percent(each["of_itself_percent"])


def _percent(change: float | None) -> str:
    if change is None:
        return ""
    return f"{change:+.2f} %" if change < 1000 else "lost"


if __name__ == "__main__":
    print(page(), end="")
