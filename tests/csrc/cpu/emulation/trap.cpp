// Carries out the instructions of AMX where the processor knows none: it raises SIGILL, and the
// handler reads the instruction, has the emulated unit do it and goes on behind it. So tests run
// the very machine code that is meant for processors with tiles. For x86-64 Linux.
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>

#include "cpu/emulation/tile_unit.h"

namespace vllm_lite::emulation {
namespace {

// Instructions since the last question, of all threads.
int64_t g_count = 0;
struct sigaction g_before;

// In the order of their numbers in instructions.
constexpr int kRegisters[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                REG_R12, REG_R13, REG_R14, REG_R15};

// VEX.128.<prefix>.0F38.W0 <opcode> /r.
struct Instruction {
  int prefix, opcode, length;
  bool has_memory;
  int reg, rm, third;     // registers that the instruction names
  uintptr_t base;         // of memory: base + displacement
  int64_t index;          // the index register, scaled: a tile's stride
};

bool decode(const uint8_t* code, const gregset_t& registers, Instruction& to) {
  const uint8_t* at = code;
  if (*at++ != 0xc4) return false;
  const int extensions = ~(*at >> 5) & 7, map = *at & 31;
  ++at;
  const bool is_wide = *at >> 7, is_long = *at >> 2 & 1;
  to.third = ~(*at >> 3) & 15;
  to.prefix = *at++ & 3;
  to.opcode = *at++;
  if (map != 2 || is_wide || is_long) return false;
  const int mode = *at >> 6;
  to.reg = (*at >> 3 & 7) | (extensions >> 2 & 1) << 3;
  const int rm = *at++ & 7;
  to.rm = rm | (extensions & 1) << 3;
  to.has_memory = mode != 3;
  if (to.has_memory) {
    int base = to.rm;
    to.index = 0;
    if (rm == 4) {
      const int sib = *at++;
      const int index = (sib >> 3 & 7) | (extensions >> 1 & 1) << 3;
      if (index != 4) to.index = registers[kRegisters[index]] << (sib >> 6);
      base = (sib & 7) | (extensions & 1) << 3;
      if ((sib & 7) == 5 && mode == 0) return false;
    } else if (rm == 5 && mode == 0) {
      base = -1;  // relative to the next instruction
    }
    int32_t displacement = 0;
    if (mode == 1) displacement = static_cast<int8_t>(*at++);
    if (mode == 2 || base < 0) {
      memcpy(&displacement, at, sizeof displacement);
      at += sizeof displacement;
    }
    const uintptr_t from = base < 0 ? reinterpret_cast<uintptr_t>(at)
                                    : static_cast<uintptr_t>(registers[kRegisters[base]]);
    to.base = from + displacement;
  }
  to.length = static_cast<int>(at - code);
  return true;
}

// Prefixes: 0 none, 1 66, 2 F3, 3 F2.
bool carry_out(const Instruction& i) {
  TileUnit& unit = tile_unit();
  void* memory = reinterpret_cast<void*>(i.base);
  switch (i.opcode << 2 | i.prefix) {
    case 0x49 << 2 | 0:
      i.has_memory ? unit.load_config(memory) : unit.release();
      return true;
    case 0x49 << 2 | 3:
      unit.zero(i.reg);
      return !i.has_memory;
    case 0x4b << 2 | 3:
      unit.load(i.reg, memory, i.index);
      return i.has_memory;
    case 0x4b << 2 | 2:
      unit.store(i.reg, memory, i.index);
      return i.has_memory;
    case 0x5c << 2 | 2:
      unit.add_bfloat16_products(i.reg, i.rm, i.third);
      return !i.has_memory;
    case 0x5e << 2 | 2:
      unit.add_byte_products(i.reg, i.rm, i.third, true, false);
      return !i.has_memory;
    default:
      return false;
  }
}

void on_illegal_instruction(int, siginfo_t*, void* context) {
  gregset_t& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  Instruction instruction = {};
  const auto* code = reinterpret_cast<const uint8_t*>(registers[REG_RIP]);
  if (!decode(code, registers, instruction) || !carry_out(instruction)) {
    // Nobody's: the next try ends as it would have without this handler.
    sigaction(SIGILL, &g_before, nullptr);
    return;
  }
  __atomic_add_fetch(&g_count, 1, __ATOMIC_RELAXED);
  registers[REG_RIP] += instruction.length;
}

}  // namespace
}  // namespace vllm_lite::emulation

using namespace vllm_lite::emulation;

extern "C" __attribute__((visibility("default"))) void vllm_lite_trap_tiles() {
  struct sigaction action = {};
  action.sa_sigaction = on_illegal_instruction;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGILL, &action, &g_before);
}

// Gives the signal back; how many instructions were carried out since the last time.
extern "C" __attribute__((visibility("default"))) int64_t vllm_lite_release_trap() {
  sigaction(SIGILL, &g_before, nullptr);
  return __atomic_exchange_n(&g_count, 0, __ATOMIC_RELAXED);
}
