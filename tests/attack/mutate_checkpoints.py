"""Damages small checkpoints at random and loads each: one line and a refusal, or finite logits.

    .venv/bin/python -m tests.attack.mutate_checkpoints [--count 300] [--seed 0] [--keep DIR]

Mutants of GGUF files, of safetensors files, and of the JSON files beside them, the tokenizer's
included. They are loaded in children with limits on time and memory, many by each; whatever else
happens, a crash, a hang, another error, is a fault of the mutant under way. Exit code 1 if any.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
import os
import random
import resource
import selectors
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("gguf", "safetensors", "config")
JSON_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
SECONDS_PER_MUTANT = 60.0
SECONDS_PER_START = 120.0
MUTANTS_PER_CHILD = 30
# Beyond what a child holds once everything is imported.
CHILD_BYTES = 3 << 30

NUMBERS = [0, 1, 2, 3, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
VALUES: list[Any] = [
    *(None, True, False, "", "x", "\u0000", "\ud800", [], {}, [0], ["x"], {"x": 0}, [[]]),
    *(-1, 0.0, -0.5, 1e-300, 1e300, math.inf, math.nan, 10**30, 10**400, *NUMBERS),
    *("a" * 10**5, [1] * 10**4, "\u202e\U0001f600", "default", "llama3", "gelu", "float64"),
]


@dataclass
class Report:
    """How many mutants were refused and served, and which did something else."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


# Bytes and trees of JSON, damaged.


def damaged_bytes(rng: random.Random, data: bytes, end: int) -> bytes:
    """`data` with one to four changes, before byte `end` for most of them."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        limit = max(1, min(len(out), end if rng.random() < 0.8 else len(out)))
        at = rng.randrange(limit)
        match rng.randrange(8):
            case 0:
                out[at] = rng.randrange(256)
            case 1:
                out[at : at + 8] = struct.pack("<Q", rng.choice(NUMBERS))
            case 2:
                out[at : at + 4] = struct.pack("<I", rng.choice(NUMBERS) & 0xFFFFFFFF)
            case 3:
                out[at : at + 4] = struct.pack("<f", rng.choice((math.nan, math.inf, 1e38)))
            case 4:
                del out[at : at + rng.choice((1, 8, 64))]
            case 5:
                out[at:at] = rng.randbytes(rng.choice((1, 8, 32)))
            case 6:
                del out[at:]
            case _:
                other = rng.randrange(limit)
                out[at : at + 8], out[other : other + 8] = out[other : other + 8], out[at : at + 8]
        if not out:
            break
    return bytes(out)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a tree."""
    keys = value if isinstance(value, dict) else range(len(value)) if value else ()
    for key in list(keys) if isinstance(value, dict | list) else ():
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def damage_tree(rng: random.Random, tree: Any) -> None:
    """Change one value of a tree in place, as likely near its root as in its depth."""
    places = list(_places(tree))
    near = [(tree, key) for key in tree] if isinstance(tree, dict) else places
    container, key = rng.choice(near if rng.random() < 0.6 and near else places)
    value = container[key]
    match rng.randrange(6):
        case 0:
            del container[key]
        case 1 if isinstance(value, int | float):
            container[key] = rng.choice((value + 1, value - 1, -value, value * 1000, value / 7))
        case 2:
            container[key] = [value]
        case 3 if len(places) > 1:
            other, place = rng.choice(places)
            container[key] = json.loads(json.dumps(other[place]))
        case _:
            container[key] = rng.choice(VALUES)


def damaged_json(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.15:
        return damaged_bytes(rng, data, len(data))
    if rng.random() < 0.03:
        return b"[" * 10**5
    tree = json.loads(data)
    for _ in range(rng.choice((1, 1, 1, 3))):
        damage_tree(rng, tree)
    return json.dumps(tree).encode()


# Checkpoints to begin with.


def write_bases(folder: Path, num_families: int | None = None) -> None:
    """A directory for each family of safetensors, or for so many of them, and a GGUF file."""
    from tests.models.checkpoints import TINY, make_model, save
    from tests.models.families import FAMILIES

    every = 1 if num_families is None else len(FAMILIES) // num_families
    for family in [*FAMILIES][::every]:
        save(make_model(family), folder / family)
        (folder / family / "tokenizer.json").write_text(_tokenizer(TINY["vocab_size"]))
        settings = {"bos_token": "t1", "eos_token": "t2", "chat_template": _TEMPLATE}
        (folder / family / "tokenizer_config.json").write_text(json.dumps(settings))
        generation = {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "eos_token_id": [2, 3]}
        (folder / family / "generation_config.json").write_text(json.dumps(generation))
    write_gguf(folder / "base.gguf")


_TEMPLATE = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}{{ bos_token }}"


def _tokenizer(size: int) -> str:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    vocabulary = {f"t{i}": i for i in range(size)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="t0"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing("t1 $A", "t1 $A $B", [("t1", 1)])
    tokenizer.add_special_tokens(["t2"])
    return tokenizer.to_str()


def write_gguf(path: Path) -> None:
    import gguf
    import numpy as np

    rng = np.random.default_rng(0)
    tokens = ["<unk>", "<s>", "</s>", *(chr(97 + i) for i in range(26)), "\u2581", "ab", "abc"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(i) for i in range(len(tokens))])
    writer.add_token_types([2, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(_TEMPLATE)

    def add(name: str, rows: int, columns: int, kind: gguf.GGMLQuantizationType) -> None:
        values = rng.normal(0, 0.1, (rows, columns)).astype(np.float32)
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    types = gguf.GGMLQuantizationType
    add("token_embd.weight", len(tokens), 64, types.Q8_0)
    for layer in range(2):
        for name, rows, columns, kind in (
            ("attn_q", 64, 64, types.Q4_0),
            ("attn_k", 32, 64, types.F16),
            ("attn_v", 32, 64, types.Q5_1),
            ("attn_output", 64, 64, types.BF16),
            ("ffn_gate", 96, 64, types.F32),
            ("ffn_up", 96, 64, types.Q4_1),
            ("ffn_down", 64, 96, types.Q8_0),
        ):
            add(f"blk.{layer}.{name}.weight", rows, columns, kind)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(64, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(64, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# Mutants.


def mutate_gguf(rng: random.Random, bases: Path, place: Path) -> Path:
    data = (bases / "base.gguf").read_bytes()
    from vllm_lite.config.checkpoints.gguf_header import read_gguf

    tensors = read_gguf(bases / "base.gguf").tensors.values()
    path = place.with_suffix(".gguf")
    path.write_bytes(damaged_bytes(rng, data, min(tensor.offset for tensor in tensors)))
    return path


def _copy(rng: random.Random, bases: Path, place: Path) -> Path:
    families = sorted(path.name for path in bases.iterdir() if path.is_dir())
    return Path(shutil.copytree(bases / rng.choice(families), place))


def mutate_safetensors(rng: random.Random, bases: Path, place: Path) -> Path:
    folder = _copy(rng, bases, place)
    file = folder / "model.safetensors"
    data = file.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    if rng.random() < 0.5:
        header = json.loads(data[8 : 8 + size])
        damage_tree(rng, header)
        raw = json.dumps(header).encode()
        file.write_bytes(struct.pack("<Q", len(raw)) + raw + data[8 + size :])
    else:
        file.write_bytes(damaged_bytes(rng, data, rng.choice((8 + size, len(data)))))
    return folder


def mutate_config(rng: random.Random, bases: Path, place: Path) -> Path:
    folder = _copy(rng, bases, place)
    file = folder / rng.choice((JSON_FILES[0], *JSON_FILES))
    file.write_bytes(damaged_json(rng, file.read_bytes()))
    return folder


MUTATORS: dict[str, Callable[[random.Random, Path, Path], Path]] = {
    "gguf": mutate_gguf,
    "safetensors": mutate_safetensors,
    "config": mutate_config,
}


# The child: loads what it is told to.


def outcome_of(path: str) -> str:
    """`refused: why`, `served`, or `fault: what`."""
    from vllm_lite import LLM, SamplingParams
    from vllm_lite.errors import RequestError, UsageError

    llm = None
    try:
        llm = LLM(
            model=path,
            device="cpu",
            disable_frontend_multiprocessing=True,
            dtype="float32",
            kv_cache_memory_bytes=1 << 26,
            max_model_len=64,
            max_num_seqs=4,
            max_num_batched_tokens=64,
        )
        params = llm.get_default_sampling_params()
        params.max_tokens, params.logprobs = 4, 1
        prompts = ["ab t5 t6 t7", {"prompt_token_ids": list(range(3, 20))}]
        greedy = SamplingParams(max_tokens=4, temperature=0.0, logprobs=1, ignore_eos=True)
        for each in (params, greedy):
            for output in llm.generate(prompts, each, use_tqdm=False):
                if output.outputs[0].finish_reason == "error":
                    return "fault: a request failed in the engine"
                for logprobs in output.outputs[0].logprobs or ():
                    if not all(math.isfinite(found.logprob) for found in logprobs.values()):
                        return "fault: a log-probability is not finite"
        with contextlib.suppress(RequestError):
            llm.chat([{"role": "user", "content": "ab t9"}], params, use_tqdm=False)
    except UsageError as error:
        lines = str(error).splitlines()
        return f"refused: {lines[0]}" if len(lines) == 1 else f"fault: {len(lines)} lines: {error}"
    except RequestError as error:
        return f"served, the prompt refused: {error}"
    except BaseException as error:
        return f"fault: {type(error).__name__}: {error}"
    finally:
        if llm is not None:
            llm.close()
    return "served"


def child() -> None:
    """A path a line on standard input, an outcome a line on standard output."""
    outgoing = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    importlib.import_module("vllm_lite.worker.worker")  # before memory is limited
    with open("/proc/self/statm") as statm:
        held = int(statm.read().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (held + CHILD_BYTES,) * 2)
    for line in sys.stdin:
        outgoing.write(json.dumps(outcome_of(json.loads(line))) + "\n")
        outgoing.flush()


class Loader:
    """Children, one after another, and what they say."""

    def __init__(self, log: Path) -> None:
        self._log = log.open("ab")
        self._process: subprocess.Popen[bytes] | None = None
        self._left = 0

    def outcome(self, path: Path) -> str:
        limit = SECONDS_PER_MUTANT
        if self._process is None or not self._left:
            self.close()
            self._start()
            limit += SECONDS_PER_START
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        self._left -= 1
        self._log.write(f"--- {path}\n".encode())
        self._log.flush()
        process.stdin.write(json.dumps(str(path)).encode() + b"\n")
        process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(limit):
                self.close()
                return f"fault: no answer within {limit:g} s"
        line = process.stdout.readline()
        if not line:
            code = process.wait()
            self.close()
            return f"fault: the process ended with {code}"
        said: str = json.loads(line)
        return said

    def note(self, said: str) -> None:
        """Write into the log, where what children print stands."""
        self._log.write(f"=== {said}\n".encode("utf-8", "replace"))
        self._log.flush()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start(self) -> None:
        self._left = MUTANTS_PER_CHILD
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.attack.mutate_checkpoints", "--child"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"},
        )


def attack(
    count: int,
    seed: int,
    keep: Path,
    kinds: tuple[str, ...] = KINDS,
    num_families: int | None = None,
) -> dict[str, Report]:
    """So many mutants of each kind; those with faults, and the log, are kept in a directory."""
    reports = {kind: Report() for kind in kinds}
    with tempfile.TemporaryDirectory() as work:
        bases = Path(work) / "bases"
        bases.mkdir()
        write_bases(bases, num_families)
        loader = Loader(keep / "log")
        try:
            _drop_unsupported(bases, loader)
            for kind in kinds:
                for index in range(count):
                    name = f"{kind}-{seed}-{index}"
                    rng = random.Random(name)
                    mutant = MUTATORS[kind](rng, bases, Path(work) / name)
                    said = loader.outcome(mutant)
                    loader.note(said)
                    _enter(reports[kind], name, said, mutant, keep)
        finally:
            loader.close()
    return reports


def _drop_unsupported(bases: Path, loader: Loader) -> None:
    """Leave the checkpoints that load before they are damaged, or nothing would be learnt."""
    for base in list(bases.iterdir()):
        said = loader.outcome(base)
        if said.startswith("refused") and "supported are" in said:
            shutil.rmtree(base)
        elif said != "served":
            raise RuntimeError(f"{base.name}, as it was written, is {said}")


def _enter(report: Report, name: str, said: str, mutant: Path, keep: Path) -> None:
    report.outcomes[said.split(":")[0].split(",")[0]] += 1
    if said.startswith("fault"):
        report.faults.append(f"{name}: {said}")
        shutil.move(mutant, keep / mutant.name)
    elif mutant.is_dir():
        shutil.rmtree(mutant)
    else:
        mutant.unlink()


def main() -> int:
    """Attack, print the figures, and name every fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300, help="mutants of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, action="append", help="by default all")
    parser.add_argument("--keep", type=Path, help="where mutants with faults and the log go")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child()
        return 0
    keep = options.keep or Path(tempfile.mkdtemp(prefix="mutants-"))
    keep.mkdir(parents=True, exist_ok=True)
    reports = attack(options.count, options.seed, keep, tuple(options.kind or KINDS))
    for kind, report in reports.items():
        shown = ", ".join(f"{count} {name}" for name, count in sorted(report.outcomes.items()))
        print(f"{kind}: {shown}")
    faults = [fault for report in reports.values() for fault in report.faults]
    print("\n".join(faults) or "no faults", f"(mutants with faults and the log: {keep})", sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
