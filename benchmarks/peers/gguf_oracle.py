"""Compares GGUF files of every tiny test checkpoint with transformers and with llama.cpp itself.

    python benchmarks/peers/gguf_oracle.py [CASE ...] [--headers] [--output FILE]

A case is one of tests/models/families or of tests/models/gguf_cases.py. llama.cpp's converter makes
a float32 file of its Hugging Face directory; then the logits of that file here, those of llama.cpp
and those of transformers should be the same. `make peers` installs what is needed. --headers
records the headers of cases without a difference in tests/data/gguf_headers.json, from which the
tests write such files themselves; the last column tells whether their tensors are the converter's.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from peers.engines import CHILDREN, default_peers

# Before anything imports gguf: the converter's own version of it.
sys.path.insert(2, str(default_peers().converter / "gguf-py"))
sys.path.insert(2, str(default_peers().converter))
os.environ["TQDM_DISABLE"] = "1"

import conversion
import gguf
import numpy as np
import torch

from tests.models.checkpoints import make_model
from tests.models.families import FAMILIES
from tests.models.gguf_cases import GGUF_CASES, published
from tests.models.gguf_files import (
    HEADERS,
    checkpoint_of,
    file_tensors,
    other_name,
    rotary_tensors,
    ternary,
)
from tests.models.runner import PagedRunner, load
from vllm_lite.errors import VLLMLiteError

PEERS = default_peers()
HEADING = """# GGUF files beside llama.cpp's

Written by `make gguf-oracle`. Each case is a tiny checkpoint of the tests, which llama.cpp's
converter (of llama-cpp-python 0.3.36) makes a float32 file of; the numbers are the largest
differences between logits of 44 tokens. The last column tells whether the file that the tests write
has the converter's tensors bit for bit.

- llama.cpp looks GELU up in a table of float16 numbers, and takes its tanh form for all models:
  those with GELU differ from it by up to 2e-2. Without that table the tanh form agrees within 1e-4.
- llama.cpp takes Gemma 3n's gates for a sample, whose variance it divides by n - 1. Transformers
  with that and such a table differs from it by 4e-3, in place of 4e-2.
- What a header has no key for is as llama.cpp takes it. Where a case is otherwise, this engine and
  llama.cpp agree with each other and differ from transformers.
- llama.cpp loads no biases of some architectures, ignores windows of Phi-3 and of small EXAONE 4,
  yarn_attn_factor, another base of OLMo 3's local rotations, and DeciLM's attention before no MLP,
  caps Gemma 4's logits at 30 where the header is silent, and takes Phi-3's long factors from its
  own padded length on; there this engine agrees with transformers.
- Bamba rotates half of a head. The converter reorders pairs of the whole head, and llama.cpp
  rotates other pairs than transformers; of whole heads all three agree. Kimi Linear's files state
  no groups of experts, and llama.cpp does not read that its queries have latents.
- Not explained: phimoe, deepseek_v3-scaled, glm4_moe_lite, mimo_v2_flash and gpt_oss-published,
  where this engine agrees with transformers and llama.cpp does not.
"""
COLUMNS = (
    *("case", "GGUF name", "ours - transformers", "llama.cpp - transformers"),
    *("ours - llama.cpp", "tests' tensors"),
)
TABLE = f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}\n"
# Longer than the windows and than the lengths that are stretched.
LENGTH = 44
BOUND = 1e-4


class Refused(Exception):
    """The converter does not take a case."""


_load_hparams = conversion.ModelBase.load_hparams


def convert(directory: Path, file: Path) -> None:
    """llama.cpp's converter, but for the vocabulary: token ids are all that is compared."""

    def no_vocabulary(model: Any) -> None:
        writer = model.gguf_writer
        writer.add_tokenizer_model("none")
        key = f"{gguf.MODEL_ARCH_NAMES[model.model_arch]}.vocab_size"
        if all(key not in part for part in writer.kv_data):
            writer.add_vocab_size(model.hparams["vocab_size"])

    base = conversion.ModelBase
    base.load_hparams = lambda path, is_mistral_format: published(
        _load_hparams(path, is_mistral_format)
    )
    with torch.inference_mode():
        hparams = base.load_hparams(directory, is_mistral_format=False)
        # Only counted.
        vocabulary = {"model": {"vocab": [""] * hparams["vocab_size"]}, "added_tokens": []}
        (directory / "tokenizer.json").write_text(json.dumps(vocabulary))
        name = conversion.get_model_architecture(hparams, conversion.ModelType.TEXT)
        model_class = conversion.get_model_class(name)
        for part in (model_class, *vars(model_class).values()):
            if isinstance(part, type):
                part.set_vocab = no_vocabulary
        # Qwen's must have further layers otherwise.
        model_class.no_mtp = "Qwen" in name
        # State models are converted by what is written, not by what transformers makes of it.
        if any(part.__name__ == "Mamba2Model" for part in model_class.__mro__):
            hparams = published(json.loads((directory / "config.json").read_text()))
        else:
            hparams = base.load_hparams(directory, is_mistral_format=False)
        model = model_class(
            directory, gguf.LlamaFileType.ALL_F32, file, model_name="tiny", hparams=hparams
        )
        model.model_tensors = {other_name(key): make for key, make in model.model_tensors.items()}
        model.write()


class LlamaCpp:
    """A process that computes logits; a new one after a crash."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def logits(self, file: Path, ids: list[int]) -> torch.Tensor | str:
        """Those of every token, or the reason that there are none."""
        if not PEERS.llamacpp_python.exists():
            return "not installed"
        if self._process is None:
            command = [str(PEERS.llamacpp_python), str(CHILDREN / "logits.py")]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                # What it writes where it fails would go to stdout.
                env={**os.environ, "GGML_NO_BACKTRACE": "1"},
            )
        output = file.with_suffix(".logits")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([str(file), ids, str(output)]), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self._process = None
            return f"llama.cpp ended with {status}"
        answer = json.loads(line)
        if "error" in answer:
            return str(answer["error"])
        values = np.fromfile(output, dtype=np.float32).reshape(answer["shape"])
        return torch.from_numpy(values)


def header_of(reader: Any) -> dict[str, Any]:
    """The keys of a file but of its name and vocabulary, each with its types and its value."""
    skipped = ("GGUF.", "general.", "tokenizer.")
    return {
        key: [field.types[0].name, field.types[-1].name, field.contents()]
        for key, field in reader.fields.items()
        if not key.startswith(skipped) or key == "general.architecture"
    }


def same_tensors(reader: Any, written: dict[str, torch.Tensor]) -> str:
    """Whether the tests would write the tensors that the converter wrote, bit for bit.

    What both compute of the configuration may be rounded.
    """
    converted = {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in reader.tensors}
    if converted.keys() != written.keys():
        return f"names differ: {', '.join(sorted(converted.keys() ^ written.keys())[:3])}"
    for name, x in converted.items():
        rtol = 1e-5 if name.startswith("rope_") else 0.0
        if not torch.allclose(x, written[name], rtol=rtol, atol=0.0):
            return f"{name} differs"
    return "same"


def difference(got: torch.Tensor | str, want: torch.Tensor | str) -> str:
    """The largest difference, or the reason that there is nothing to compare."""
    if isinstance(got, str):
        # The last cause is the one that tells.
        told = got.rpartition("error loading model: ")[2]
        return told if len(told) < 90 else f"{told[:90]}..."
    if isinstance(want, str):
        return "-"
    if got.shape != want.shape:
        return f"logits {list(got.shape)}"
    return f"{(got - want).abs().max():.1e}"


class Oracle:
    """Compares one case after another."""

    def __init__(self) -> None:
        self._llamacpp = LlamaCpp()
        self.headers: dict[str, Any] = {}

    def compare(self, case: str, folder: Path) -> list[str]:
        """The table's row of `case`: its name in files, and differences from transformers."""
        family, changes = GGUF_CASES[case]
        reference = make_model(family, **changes)
        file = folder / "model.gguf"
        config, state = checkpoint_of(reference, folder / "hf")
        try:
            convert(folder / "hf", file)
        except (Exception, SystemExit) as error:
            raise Refused(f"{type(error).__name__}: {error}".splitlines()[0][:100]) from None
        reader = gguf.GGUFReader(file)
        header = header_of(reader)
        name = header["general.architecture"][2]
        try:
            tensors = rotary_tensors(reference.config) | file_tensors(name, config, state)
            written = same_tensors(reader, tensors)
        except Exception as error:
            written = f"{type(error).__name__}: {error}"
        if family == "bitnet":
            reference.load_state_dict(ternary({}, reference.state_dict()))
        vocabulary = reference.get_input_embeddings().weight.shape[0]
        generator = torch.Generator().manual_seed(1)
        ids = torch.randint(0, min(vocabulary, 131), (LENGTH,), generator=generator).tolist()
        with torch.inference_mode():
            want = reference(torch.tensor([ids])).logits[0].float()
        ours: torch.Tensor | str
        try:
            ours = PagedRunner(load(file)).step({"a": ids})["a"]
        except VLLMLiteError as error:
            ours = str(error).replace(str(folder), "")
        except Exception as error:
            ours = f"{type(error).__name__}: {error}"
        else:
            if ours.shape == want.shape and (ours - want).abs().max() < BOUND and written == "same":
                self.headers[case] = header
        theirs = self._llamacpp.logits(file, ids)
        row = [name, difference(ours, want), difference(theirs, want)]
        return [*row, difference(ours, theirs), written]


def chosen(patterns: Iterable[str]) -> list[str]:
    """The cases whose names match, of architectures that the converter knows."""
    known = conversion.TEXT_MODEL_MAP
    found = []
    for case, (family, _) in GGUF_CASES.items():
        if patterns and not any(fnmatch.fnmatch(case, pattern) for pattern in patterns):
            continue
        told = FAMILIES[family]
        if told.architecture in known or told.rewrite is not None or patterns:
            found.append(case)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*", help="names or patterns; all where none is given")
    parser.add_argument("--headers", action="store_true", help="record the converter's headers")
    parser.add_argument("--output", type=Path, help="write the table to this file, too")
    parser.add_argument("--keep", type=Path, help="leave the files in this folder")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    oracle = Oracle()
    lines, refused = [], []
    print(TABLE, end="")
    for case in chosen(args.cases):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) if args.keep is None else args.keep / case
            folder.mkdir(parents=True, exist_ok=True)
            try:
                row = oracle.compare(case, folder)
            except Refused as error:
                refused.append(f"- {case}: {error}")
                print(refused[-1], flush=True)
                continue
        lines.append("| " + " | ".join([case, *(cell.replace("|", "/") for cell in row)]) + " |")
        print(lines[-1], flush=True)
    if args.output is not None:
        body = "\n".join([*lines, "", "The converter refuses:", "", *refused])
        args.output.write_text(f"{HEADING}\n{TABLE}{body}\n")
    if args.headers:
        stored = json.loads(HEADERS.read_text()) if HEADERS.exists() else {}
        shown = {key: json.dumps(value) for key, value in sorted((stored | oracle.headers).items())}
        body = ",\n".join(f"{json.dumps(key)}: {value}" for key, value in shown.items())
        HEADERS.write_text("{\n" + body + "\n}\n")


if __name__ == "__main__":
    main()
