"""Code compiled for an older processor contains no instruction that only newer ones have.

Read from the build's object files: common code, the kernels' AVX2 copy, and functions that the
linker could mix up between copies.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ISAS = ("portable", "avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx")

# Of AVX-512 and AMX: the registers, masks, and instructions that have a short form as well.
BEYOND_V3 = re.compile(
    r"%(?:zmm\d+|[xy]mm(?:1[6-9]|2\d|3[01])|k[0-7]|tmm\d)\b"
    r"|\s(?:vpdp|vpmadd52|vgf2p8|vbcstne|vcvtne|tdp|ldtilecfg|tileload|tilezero)"
)
TILES = re.compile(r"%tmm\d|\s(?:ldtilecfg|sttilecfg|tilerelease)\b")
# Of AVX and its like: the wide registers, and a mnemonic in three operands.
BEYOND_SSE2 = re.compile(
    rf"%ymm\d|{BEYOND_V3.pattern}"
    r"|\sv(?!er[rw])[a-z0-9]+\s"
    r"|\s(?:popcnt|lzcnt|tzcnt|andn|bextr|blsr|shlx|shrx|sarx|mulx|pdep|pext|movbe|crc32|pshufb"
    r"|p?blend\w*|ptest|round[sp][sd]|p(?:min|max)[us][bwd]q?|pmull?d|pmuldq|pmov[sz]x\w+|h(?:add|sub)p[sd]"
    r"|dpp[sd]|insertps|pinsr[bdq]|pextr[bdq]|lddqu|phadd\w+|pabs[bwd]|palignr)\s"
)
# SSE2's own, which the words above would take for something later.
SSE2 = re.compile(r"\s(?:pminub|pmaxub|pminsw|pmaxsw|pinsrw|pextrw|pmuludq|pmullw)\s")
# What the x86-64 ABI's processor tells about itself is asked before anything newer is used.
ASKING = re.compile(r"\s(?:cpuid|xgetbv)\s")


def newest_build() -> Path | None:
    """The folder of the object files of the last build."""
    found = [
        module.parent
        for module in ROOT.glob("build/*/_cpu*.so")
        if module.parent.name not in ("address", "undefined")
        and (module.parent / "CMakeFiles/_cpu.dir").is_dir()
    ]
    return max(found, key=lambda folder: folder.stat().st_mtime, default=None)


def objects(name: str) -> list[Path]:
    """The object files of a CMake target, without those of sources it had in an earlier build.

    Skips the test if there is no build or no objdump.
    """
    build = newest_build()
    if build is None or shutil.which("objdump") is None:
        pytest.skip("there is no build here, or no objdump to read it")
    if not (build / "CMakeFiles/kernels_avx2.dir").is_dir():
        pytest.skip("the build is for another architecture")
    commands = json.loads((build / "compile_commands.json").read_text())
    outputs = [re.search(r" -o (\S+\.o) ", entry["command"])[1] for entry in commands]
    return sorted(build / path for path in outputs if path.startswith(f"CMakeFiles/{name}.dir/"))


def instructions(path: Path) -> Iterator[str]:
    """Each instruction as ` mnemonic operands `, in AT&T's order."""
    words = ["objdump", "--disassemble", "--no-show-raw-insn", str(path)]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    for line in text.splitlines():
        _, tab, instruction = line.partition("\t")
        if tab:
            # A function's name may look like a register or a mnemonic.
            yield f" {re.sub(r'<[^>]*>', '', instruction)} "


def foreign(paths: list[Path], beyond: re.Pattern[str]) -> list[str]:
    found = []
    for path in paths:
        for line in instructions(path):
            if beyond.search(line) and not SSE2.search(line) and not ASKING.search(line):
                found.append(f"{path.name}: {line.strip()}")
    return found


@pytest.mark.parametrize(
    ("target", "beyond"),
    [("_cpu", BEYOND_SSE2), ("kernels_portable", BEYOND_SSE2), ("kernels_avx2", BEYOND_V3)],
    ids=["common", "portable", "avx2"],
)
def test_objects_hold_no_newer_instructions(target: str, beyond: re.Pattern[str]) -> None:
    paths = objects(target)
    assert paths
    assert not foreign(paths, beyond)[:10]


def test_the_search_finds_newer_instructions_where_expected() -> None:
    """Copies for newer processors contain newer instructions."""
    (linear,) = [path for path in objects("kernels_avx512") if path.name.startswith("linear")]
    assert foreign([linear], BEYOND_V3)
    (linear,) = [path for path in objects("kernels_avx2") if path.name.startswith("linear")]
    assert foreign([linear], BEYOND_SSE2)


def test_only_the_amx_level_uses_tiles() -> None:
    for target in ("_cpu", "kernels_avx512", "kernels_avx512_vnni", "kernels_avx512_bf16"):
        assert not foreign(objects(target), TILES)[:10]


@pytest.mark.parametrize(
    ("name", "products"),
    [
        ("amx/linear", {"tdpbf16ps"}),
        ("kernels/attention", {"tdpbf16ps"}),
        ("kernels/grouped_linear", {"tdpbf16ps", "tdpbsud"}),
    ],
)
def test_amx_kernels_use_tiles(name: str, products: set[str]) -> None:
    (path,) = [path for path in objects("kernels_amx") if str(path).endswith(f"{name}.cpp.o")]
    used = {line.split()[0] for line in instructions(path) if TILES.search(line)}
    # Shapes are set before tiles are used, and given back afterwards.
    assert used == {"ldtilecfg", "tilezero", "tileloadd", "tilestored", "tilerelease"} | products


@pytest.mark.parametrize("isa", ISAS)
def test_instruction_sets_share_no_functions(isa: str) -> None:
    """The linker keeps one of several functions of a name: it might be the newest processor's."""
    shared = []
    for path in objects(f"kernels_{isa}"):
        words = ["nm", "--defined-only", "--extern-only", "--demangle", str(path)]
        symbols = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        names = [line.split(" ", 2)[2] for line in symbols.splitlines()]
        shared += [name for name in names if f"vllm_lite::{isa}::" not in name]
    assert not shared
