"""Perplexity of the demo model in every format of weights that its sizes allow, beside float32.

    python benchmarks/format_perplexity.py                 35 minutes of two cores
    python benchmarks/format_perplexity.py --only 'in flight' --windows 2 --output-json some.json

The model is written plain, and from that in each format: by the writers of the tests where a tool
would have written a checkpoint, by this package where it rounds in flight, and by llama.cpp's own
quantiser (`make peers`) where it is a GGUF file, which is held against itself dequantised. Formats
that share values cost the same, and one of them stands for all. What a tool finds from data (a
better grid) is not there: each weight takes its nearest value. But static scales of inputs hold
what layers read in the text's first 512 tokens, and GGUF's IQ types, whose files nobody makes
otherwise, weigh inputs by their squares there.

perplexity.py scores, always in float32. Results are added to the file one by one, and what it has
is not measured again; `make docs` writes the table of docs/quantization.md from it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1]))

import numpy as np
import torch
from gguf import (
    GGML_QUANT_SIZES,
    MODEL_ARCH,
    GGMLQuantizationType,
    GGUFReader,
    GGUFWriter,
    get_tensor_name_map,
)
from gguf.quants import dequantize
from peers.ggml_blocks import ggml, quantised, weight_types
from peers.machine import describe_machine
from perplexity import TEXT, score
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from tests.models.demo_checkpoints import CHECKPOINTS, Settings, fitted
from tests.models.quantized_checkpoints import Quantise
from vllm_lite.config.demo import demo_path
from vllm_lite.config.quantized.in_flight import BLOCKS, CODES
from vllm_lite.errors import VLLMLiteError

BENCHMARKS = Path(__file__).parent
OUTPUT = BENCHMARKS / "results" / "format_perplexity.json"
# A GGUF file as it is may differ by so much from itself dequantised, unless its model is lost.
LIMIT_PERCENT, LOST_PERCENT = 0.5, 1000.0


@dataclass(frozen=True, slots=True)
class Form:
    """A format: what makes the model, and the engine's options."""

    part: str
    name: str
    inputs: str
    make: Callable[[], Path]
    options: dict[str, str]


@dataclass(frozen=True, slots=True)
class Result:
    """`change_percent` is of float32, or of a GGUF file dequantised; a refusal has a reason."""

    part: str
    name: str
    inputs: str
    perplexity: float | None
    change_percent: float | None = None
    of_itself_percent: float | None = None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The least and the greatest number that a layer read, and each input's mean square."""

    bounds: tuple[float, float]
    squares: Any


class Demo:
    """The demo model as files in a directory: one plain, and one at a time in another format."""

    def __init__(self, folder: Path) -> None:
        self.plain = folder / "plain"
        self._other = folder / "other"
        export = BENCHMARKS / "export_demo_checkpoint.py"
        subprocess.run([sys.executable, export, self.plain], check=True, stdout=sys.stderr)
        self._state = load_file(self.plain / "model.safetensors")

    @cached_property
    def inputs(self) -> dict[str, Inputs]:
        """Inputs of layers over the text's first 512 tokens, also by GGUF's names of them."""
        found: dict[str, Inputs] = {}
        model = LlamaForCausalLM.from_pretrained(self.plain, dtype=torch.float32)
        names = get_tensor_name_map(MODEL_ARCH.LLAMA, model.config.num_hidden_layers)
        for name, module in model.named_modules():

            def note(_: Any, args: Any, name: str = name) -> None:
                low, high = args[0].aminmax()
                squares = args[0].flatten(0, -2).square().mean(0)
                found[name] = Inputs((low.item(), high.item()), squares.numpy())
                found[str(names.get_name(name))] = found[name]

            if name.endswith("_proj"):
                module.register_forward_pre_hook(note)
        ids = Tokenizer.from_file(str(self.plain / "tokenizer.json")).encode(TEXT.read_text()).ids
        with torch.inference_mode():
            model(torch.tensor([ids[:512]]))
        return found

    def stored(self, inputs: str, settings: Settings, quantise: Quantise) -> Path:
        """A checkpoint by a writer of the tests."""
        self._other.mkdir(exist_ok=True)
        stored = {}
        for name, tensor in self._state.items():
            if not name.endswith("_proj.weight"):
                stored[name] = tensor
                continue
            parts, _ = quantise(name, tensor.float())
            layer = name.removesuffix(".weight")
            if not parts.keys().isdisjoint(("input_scale", "input_global_scale")):
                parts = fitted(parts, inputs, *self.inputs[layer].bounds)
            stored |= {f"{layer}.{suffix}": part.contiguous() for suffix, part in parts.items()}
        save_file(stored, self._other / "model.safetensors", {"format": "pt"})
        for file in self.plain.glob("*.json"):
            (self._other / file.name).write_bytes(file.read_bytes())
        config = json.loads((self.plain / "config.json").read_text())
        config["quantization_config"] = settings
        (self._other / "config.json").write_text(json.dumps(config))
        return self._other

    def as_gguf(self, kind: GGMLQuantizationType) -> Path:
        """A file whose matrices are of a type as far as its blocks divide them, the rest Q8_0."""
        path = self._other.with_suffix(".gguf")
        reader = GGUFReader(demo_path())
        writer = GGUFWriter(path, "llama")
        for field in reader.fields.values():
            if not field.name.startswith(("GGUF.", "general.architecture")):
                inner = field.types[-1] if len(field.types) > 1 else None
                writer.add_key_value(field.name, field.contents(), field.types[0], inner)
        with ThreadPoolExecutor() as pool:
            importance = self.inputs if kind.name.startswith("IQ") else {}
            stored = pool.map(partial(as_stored, kind, importance), reader.tensors)
            for tensor, (values, own) in zip(reader.tensors, stored, strict=True):
                writer.add_tensor(tensor.name, values, raw_dtype=own)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def as_stored(
    kind: GGMLQuantizationType, importance: dict[str, Inputs], tensor: Any
) -> tuple[Any, GGMLQuantizationType]:
    """A tensor's values as a file with matrices of `kind` has them, and their type."""
    values = dequantize(tensor.data, tensor.tensor_type)
    if values.ndim < 2:
        return values, GGMLQuantizationType.F32
    elements, _ = GGML_QUANT_SIZES[kind]
    fits = "token_embd" not in tensor.name and not values.shape[1] % elements
    own = kind if fits else GGMLQuantizationType.Q8_0
    read = importance.get(tensor.name.removesuffix(".weight"))
    library = ggml()
    assert library is not None
    weighed = np.ones(values.shape[1]) if read is None else read.squares
    return quantised(library, values, own, weighed), own


def forms(demo: Demo) -> Iterator[Form]:
    """float32 first; of forms with several names, the first."""
    yield Form("plain", "float32", "", lambda: demo.plain, {})
    seen: dict[Any, str] = {}
    for name, form in {**CODES, **BLOCKS}.items():
        seen.setdefault(form, name)
    for form, name in seen.items():
        rounding = getattr(form, "rounding", None)
        inputs = f"int8 by {rounding.scope}" if rounding else ""
        inputs = "int8 in 32" if form in BLOCKS.values() else inputs
        yield Form("in flight", name, inputs, lambda: demo.plain, {"quantization": name})
    for name, (inputs, settings, quantise) in CHECKPOINTS.items():
        yield Form("checkpoint", name, inputs, partial(demo.stored, inputs, settings, quantise), {})
    if ggml() is None:
        sys.stderr.write("llama.cpp is not there (make peers): no GGUF files\n")
        return
    for kind in weight_types():
        make = partial(demo.as_gguf, kind)
        yield Form("GGUF", kind.name, "int8 in 32", make, {"quantization": "gguf"})


def measure(form: Form, args: argparse.Namespace, base: float | None) -> Result:
    """Score a form, where it is a GGUF file beside itself dequantised."""

    def perplexity(model: Path, **options: str) -> float:
        given = argparse.Namespace(**vars(args), model=str(model))
        return score(given, {"dtype": "float32", **options})[0]

    try:
        model = form.make()
        found = perplexity(model, **form.options)
        itself = perplexity(model, quantization="dequantize") if form.part == "GGUF" else None
    except VLLMLiteError as error:
        # Without the name of a directory that is gone.
        reason = re.sub(r"^/\S+: ", "", str(error))
        return Result(form.part, form.name, form.inputs, None, refusal=reason)
    change, of_itself = (
        None if other is None else round(100 * (found / other - 1), 3) for other in (base, itself)
    )
    return Result(form.part, form.name, form.inputs, round(found, 4), change, of_itself)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", default=str(TEXT))
    parser.add_argument("--window", type=int, default=512, help="tokens of a window")
    parser.add_argument("--windows", type=int, default=None, help="how many, from the beginning")
    parser.add_argument("--only", action="append", default=[], metavar="PART|NAME")
    parser.add_argument("--output-json", type=Path, default=OUTPUT)
    args = parser.parse_args()
    wanted = ("plain", *args.only)
    content: dict[str, Any] = {"window": args.window, "windows": args.windows, "results": []}
    if args.output_json.exists():
        content = json.loads(args.output_json.read_text())
        if [content["window"], content["windows"]] != [args.window, args.windows]:
            raise SystemExit(f"{args.output_json} is of other windows; remove it")
    results: list[dict[str, Any]] = content["results"]
    content["machine"] = describe_machine()
    with tempfile.TemporaryDirectory() as folder:
        every = list(forms(Demo(Path(folder))))
        known = {name for form in every for name in (form.part, form.name)}
        if unknown := sorted(set(args.only) - known):
            parts = sorted({form.part for form in every})
            parser.error(f"--only {unknown[0]!r} is no format; parts: {', '.join(parts)}")
        for form in every:
            is_wanted = not args.only or form.part in wanted or form.name in wanted
            if not is_wanted or any(
                (each["part"], each["name"]) == (form.part, form.name) for each in results
            ):
                continue
            result = measure(form, args, results[0]["perplexity"] if results else None)
            print(*asdict(result).values(), sep="\t", flush=True)
            results.append(asdict(result))
            args.output_json.write_text(json.dumps(content, indent=1) + "\n")
    kept = [each for each in results if (each["change_percent"] or 0.0) < LOST_PERCENT]
    of_itself = [abs(each["of_itself_percent"] or 0.0) for each in kept]
    if any(change > LIMIT_PERCENT for change in of_itself):
        sys.exit(f"a GGUF file differs from itself dequantised by more than {LIMIT_PERCENT} %")


if __name__ == "__main__":
    main()
