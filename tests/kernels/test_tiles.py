"""Linear layers on AMX tiles: exact results, special values and detection.

The kernels run on an emulated unit; on machines with tiles, AMX is also one of the instruction
sets of the other tests.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.kernels import emulated_tiles
from tests.kernels.emulated_tiles import EmulatedTiles
from tests.kernels.test_grouped_linear import cases as grouped_cases
from vllm_lite import _cpu
from vllm_lite.kernels.cpu import ops as cpu
from vllm_lite.kernels.grouped_weight import make_grouped
from vllm_lite.kernels.reference.ops import Ops as reference
from vllm_lite.kernels.reference.rounding import ActivationRounding

# Below, at and beyond what fills a tile, a block of two, and the rows that go through together.
HEIGHTS = (1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 96, 97, 200)
SMALLEST = 2.0**-126


@pytest.fixture(params=emulated_tiles.kinds())
def tiles(request: pytest.FixtureRequest) -> EmulatedTiles:
    return emulated_tiles.build(request.param)


def test_the_kernels_own_check_passes(tiles: EmulatedTiles) -> None:
    assert tiles.multiply_rightly()
    assert not tiles.is_trapped or tiles.num_trapped > 0


@pytest.fixture
def below_tiles() -> Iterator[None]:
    """The instruction set below AMX."""
    before = _cpu.selected_isa()
    _cpu.select_isa(emulated_tiles.base_isa())
    yield
    _cpu.select_isa(before)


def test_integers_are_multiplied_exactly(tiles: EmulatedTiles) -> None:
    for inputs in (1, 2, 31, 32, 33, 64, 95, 576):
        weight = torch.randint(-8, 9, (70, inputs))
        packed = cpu.pack_linear(weight.bfloat16())
        for height in HEIGHTS:
            x = torch.randint(-16, 17, (height, inputs))
            with tiles.chosen():
                got = cpu.linear(x.bfloat16(), packed, None, torch.float32)
            assert torch.equal(got, (x @ weight.T).float())


def test_a_row_is_the_same_at_every_height(tiles: EmulatedTiles) -> None:
    x, packed = torch.randn(200, 75).bfloat16(), cpu.pack_linear(torch.randn(40, 75).bfloat16())
    with tiles.chosen():
        whole = cpu.linear(x, packed, None, torch.float32)
        for height in HEIGHTS:
            for start in {0, 200 - height, (200 - height) // 2}:
                part = cpu.linear(x[start : start + height], packed, None, torch.float32)
                assert torch.equal(part, whole[start : start + height])


@pytest.mark.parametrize("name", ["4 bits", "3 bits", "8 bits", "e4m3 blocks", "nvfp4", "permuted"])
def test_grouped_weights_give_a_row_the_same_at_every_height(
    name: str, tiles: EmulatedTiles
) -> None:
    weight = grouped_cases()[name]()
    packed = cpu.pack_grouped(weight)
    x = torch.randn(70, weight.num_inputs).bfloat16()
    want = reference.grouped_linear(x.float(), weight)
    with tiles.chosen():
        whole = cpu.grouped_linear(x, packed, None, torch.float32)
        for height in (1, 2, 16, 33):
            assert torch.equal(
                cpu.grouped_linear(x[:height], packed, None, torch.float32), whole[:height]
            )
    torch.testing.assert_close(whole, want, rtol=4e-3, atol=0.2)


@pytest.mark.skipif(emulated_tiles.base_isa() != "avx512_bf16", reason="needs products of bytes")
@pytest.mark.usefixtures("below_tiles")
@pytest.mark.parametrize("inputs", [16, 200, 512, 1056])
@pytest.mark.parametrize("is_shifted", [False, True])
def test_int8_by_int8_equals_the_level_below(
    inputs: int, is_shifted: bool, tiles: EmulatedTiles
) -> None:
    codes = torch.randint(256, (75, inputs), dtype=torch.uint8)
    packed = cpu.pack_grouped(make_grouped(codes, torch.rand(75, 1) + 0.5, 8, 128))
    rounding = ActivationRounding(torch.int8, is_shifted=is_shifted)
    for height in HEIGHTS:
        x = torch.randn(height, inputs).bfloat16()
        want = cpu.grouped_linear(x, packed, None, torch.float32, None, rounding)
        with tiles.chosen():
            got = cpu.grouped_linear(x, packed, None, torch.float32, None, rounding)
        assert torch.equal(got, want)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_non_finite_values_stay_in_their_rows(bad: float, tiles: EmulatedTiles) -> None:
    """Neither other rows nor memory around the inputs affects a row."""
    wide = torch.full((40, 200), bad, dtype=torch.bfloat16)
    x, weight = wide[:, 50:127], torch.randn(20, 77).bfloat16()
    x.normal_()
    x[7, 3] = bad
    packed, expected = cpu.pack_linear(weight), reference.linear(x, reference.pack_linear(weight))
    with tiles.chosen():
        got = cpu.linear(x, packed)
    assert not got[7].isfinite().any()
    others = [row for row in range(40) if row != 7]
    torch.testing.assert_close(got[others], expected[others], rtol=8e-3, atol=1e-3)


def test_subnormal_numbers_count_as_zero(tiles: EmulatedTiles) -> None:
    x = torch.tensor([[SMALLEST / 2, 1.0], [SMALLEST, 1.0]]).bfloat16()
    weight = torch.tensor([[1.0, 0.0], [0.5, 0.0], [2.0, SMALLEST / 4]]).bfloat16()
    packed = cpu.pack_linear(weight)
    with tiles.chosen():
        got = cpu.linear(x, packed, None, torch.float32)
    assert got.tolist() == [[0.0, 0.0, 0.0], [SMALLEST, 0.0, 2 * SMALLEST]]


def test_even_and_odd_inputs_are_summed_separately(tiles: EmulatedTiles) -> None:
    """The unit's order of sums keeps terms that summation from the left would lose."""
    x = torch.ones(1, 32).bfloat16()
    weight = torch.zeros(1, 32)
    weight[0, 0], weight[0, 1], weight[0, 2] = 2.0**30, 1.0, -(2.0**30)
    packed = cpu.pack_linear(weight.bfloat16())
    with tiles.chosen():
        assert cpu.linear(x, packed, None, torch.float32).item() == 1.0


needs_instructions = pytest.mark.skipif(
    not emulated_tiles.can_use_real(), reason="no tile instructions can run here"
)


@needs_instructions
@pytest.mark.usefixtures("below_tiles")
@pytest.mark.parametrize("inputs", [1, 31, 64, 95, 576])
def test_instructions_give_the_emulated_units_bits(inputs: int) -> None:
    """Sums in bfloat16 have an order; the emulated unit's is the processor's."""
    packed = cpu.pack_linear(torch.randn(70, inputs).bfloat16())
    emulated = emulated_tiles.build("plain")
    for height in HEIGHTS:
        x = torch.randn(height, inputs).bfloat16()
        with emulated.chosen():
            want = cpu.linear(x, packed, None, torch.float32)
        with emulated_tiles.real_tiles():
            assert torch.equal(cpu.linear(x, packed, None, torch.float32), want)


@needs_instructions
@pytest.mark.usefixtures("below_tiles")
@pytest.mark.parametrize("name", ["4 bits", "3 bits", "8 bits", "e4m3 blocks", "nvfp4", "permuted"])
def test_instructions_give_the_emulated_units_bits_by_grouped_weights(name: str) -> None:
    weight = grouped_cases()[name]()
    packed = cpu.pack_grouped(weight)
    for height in (1, 2, 16, 33):
        x = torch.randn(height, weight.num_inputs).bfloat16()
        with emulated_tiles.build("plain").chosen():
            want = cpu.grouped_linear(x, packed, None, torch.float32)
        with emulated_tiles.real_tiles():
            assert torch.equal(cpu.grouped_linear(x, packed, None, torch.float32), want)


def run_program(source: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Compile C++ and run it; skips the test without a compiler."""
    if emulated_tiles.compiler() is None:
        pytest.skip("no C++ compiler")
    program = f"{folder}/program"
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [str(emulated_tiles.compiler()), "-std=c++20", *emulated_tiles.INCLUDES, "-xc++"]
    subprocess.run([*command, "-", "-o", program], input=source, text=True, check=True)
    return subprocess.run([program], capture_output=True, text=True, env=environment, timeout=60)


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        ("unit.zero(0);", "used before they have shapes"),
        ("configure(16, 64); unit.zero(3);", "a tile without a shape"),
        ("configure(17, 64);", "a shape that is too large"),
        ("configure(16, 0);", "without rows or without columns"),
        ("configure(8, 64); unit.add_byte_products(0, 1, 1, true, true);", "with itself"),
        ("configure(8, 64); unit.add_bfloat16_products(0, 1, 2);", "do not fit together"),
        ("configure(16, 64); unit.add_bfloat16_products(0, 1, 2); exit(3);", ""),
    ],
)
def test_the_emulated_unit_refuses_invalid_use(misuse: str, message: str, tmp_path: Path) -> None:
    source = f"""
        #include "cpu/emulation/tile_unit.h"
        vllm_lite::emulation::TileUnit unit;
        void configure(int rows, int bytes) {{
          unsigned char config[64] = {{1}};
          for (int i = 0; i < 3; ++i) config[16 + 2 * i] = bytes, config[48 + i] = rows;
          unit.load_config(config);
        }}
        int main() {{ {misuse} }}
    """
    done = run_program(source, tmp_path)
    assert message in done.stderr
    assert done.returncode == (-6 if message else 3)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="asks an x86-64 processor")
def test_a_broken_tile_unit_fails_only_in_a_child(tmp_path: Path) -> None:
    """A machine that announces tiles but lacks them crashes only the child process."""
    source = """
        #define VLLM_LITE_HAS_AMX 1
        #include "cpu/tiles.cpp"
        #include <cstdio>
        #include <cstdlib>
        namespace vllm_lite::amx { bool tiles_multiply_rightly() { return true; } }
        using namespace vllm_lite;
        int main() {
          signal(SIGCHLD, SIG_IGN);
          for (int number : {SIGILL, SIGSEGV, SIGALRM}) signal(number, [](int) { puts("caught"); });
          sigset_t all;
          sigfillset(&all);
          sigprocmask(SIG_BLOCK, &all, nullptr);
          printf("%d", succeeds_in_a_child([] { return true; }));
          printf("%d", succeeds_in_a_child([] { return false; }));
          printf("%d", succeeds_in_a_child([]() -> bool { __builtin_trap(); }));
          printf("%d", succeeds_in_a_child([]() -> bool { abort(); }));
          printf("%d", succeeds_in_a_child([] { raise(SIGSEGV); return true; }));
          printf("%d", succeeds_in_a_child([] { raise(SIGALRM); return true; }));
          printf("%d", succeeds_in_a_child([] { return true; }));
          puts(waitpid(-1, nullptr, __WALL) == -1 ? " no child is left" : " a child is left");
        }
    """
    done = run_program(source, tmp_path)
    assert done.returncode == 0
    assert done.stdout == "1000001 no child is left\n"


def test_tile_detection_agrees_in_threads_and_children() -> None:
    """Detection gives the same answer before and after a fork, for any signal handlers."""
    program = """
        import faulthandler, os, signal, threading
        faulthandler.enable()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        from vllm_lite import _cpu
        answers = []
        threads = [
            threading.Thread(target=lambda: answers.append(_cpu.supported_isas()))
            for _ in range(4)
        ]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        child = os.fork()
        if child == 0:
            os._exit(_cpu.supported_isas() != answers[0])
        assert os.waitpid(child, 0)[1] == 0
        assert len(answers) == 4 and all(answer == answers[0] for answer in answers)
        print(answers[0])
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(_cpu.supported_isas())
