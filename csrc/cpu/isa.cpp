#include "cpu/isa.h"

#if VLLM_LITE_HAS_NEON_BF16
#include <sys/auxv.h>
#endif

#include <atomic>
#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "cpu/tiles.h"

namespace vllm_lite {

namespace portable {
extern const KernelTable kTable;
}
#if VLLM_LITE_HAS_AVX2
namespace avx2 {
extern const KernelTable kTable;
}
#endif
#if VLLM_LITE_HAS_AVX512_BF16
namespace avx512 {
extern const KernelTable kTable;
}
namespace avx512_vnni {
void quantized_product(const QuantizedProduct&, int64_t begin_panel, int64_t end_panel);
}
namespace avx512_bf16 {
extern const KernelTable kTable;
}
#endif
#if VLLM_LITE_HAS_AMX
namespace amx {
void linear(const Linear&, int64_t first_row, int64_t end_row, int64_t begin_panel,
            int64_t end_panel);
void widen_rows(const WidenRows&, int64_t begin_row, int64_t end_row);
void grouped_product(const GroupedProduct&, int64_t begin_panel, int64_t end_panel);
extern const AttentionKernels kAttention;
}  // namespace amx
#endif
#if VLLM_LITE_HAS_NEON_BF16
namespace neon_bf16 {
extern const KernelTable kTable;
}
#endif

namespace {

struct Isa {
  const char* name;
  const KernelTable* table;
  bool (*is_supported)();
};

#if VLLM_LITE_HAS_AVX2
// These check the operating system's support as well as the processor's.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
#endif
#if VLLM_LITE_HAS_AVX512_BF16
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool has_avx512_vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
// Every processor with the one has the other.
bool has_avx512_bf16() { return has_avx512_vnni() && __builtin_cpu_supports("avx512bf16"); }

const KernelTable kVnniTable = [] {
  KernelTable table = avx512::kTable;
  table.quantized_product = avx512_vnni::quantized_product;
  return table;
}();

// Intel's cores begin a product of pairs in every second cycle, and two of float32 in each: widened
// numbers are multiplied twice as fast.
bool has_fast_pairs() { return has_avx512_bf16() && !__builtin_cpu_is("intel"); }
bool has_slow_pairs() { return has_avx512_bf16() && !has_fast_pairs(); }
#endif

#if VLLM_LITE_HAS_AMX
bool has_amx() { return has_avx512_bf16() && tiles_are_usable(); }

const KernelTable kAmxTable = [] {
  KernelTable table = avx512_bf16::kTable;
  table.attention = &amx::kAttention;
  table.linear = amx::linear;
  table.widen_rows = amx::widen_rows;
  table.grouped_product = amx::grouped_product;
  return table;
}();
#endif

#if VLLM_LITE_HAS_NEON_BF16
bool has_neon_bf16() {
  // HWCAP2_I8MM and HWCAP2_BF16, which older headers lack.
  constexpr unsigned long kWanted = 1ul << 13 | 1ul << 14;
  return (getauxval(AT_HWCAP2) & kWanted) == kWanted;
}
#endif

const Isa kIsas[] = {
#if VLLM_LITE_HAS_AMX
    {"amx", &kAmxTable, has_amx},
#endif
#if VLLM_LITE_HAS_AVX512_BF16
    {"avx512_bf16", &avx512_bf16::kTable, has_fast_pairs},
    {"avx512_vnni", &kVnniTable, has_avx512_vnni},
    {"avx512_bf16", &avx512_bf16::kTable, has_slow_pairs},
    {"avx512", &avx512::kTable, has_avx512},
#endif
#if VLLM_LITE_HAS_AVX2
    {"avx2", &avx2::kTable, has_avx2},
#endif
#if VLLM_LITE_HAS_NEON_BF16
    {"neon_bf16", &neon_bf16::kTable, has_neon_bf16},
#endif
    {"portable", &portable::kTable, [] { return true; }},
};

std::atomic<const Isa*> g_selected{nullptr};

const Isa& selected() {
  const Isa* isa = g_selected.load(std::memory_order_acquire);
  if (isa == nullptr) {
    for (isa = kIsas; !isa->is_supported(); ++isa) {
    }
    g_selected.store(isa, std::memory_order_release);
  }
  return *isa;
}

}  // namespace

std::vector<std::string> supported_isas() {
  std::vector<std::string> names;
  for (const Isa& isa : kIsas) {
    if (isa.is_supported()) names.emplace_back(isa.name);
  }
  return names;
}

void select_isa(const std::string& name) {
  for (const Isa& isa : kIsas) {
    if (name == isa.name && isa.is_supported()) {
      g_selected.store(&isa, std::memory_order_release);
      return;
    }
  }
  throw std::invalid_argument("this machine cannot run the kernels of " + name);
}

const char* selected_isa() { return selected().name; }
const KernelTable& kernels() { return *selected().table; }

// Zen 4, alone: there the first cache waits for few lines at once. Slower on Zen 5; not measured on
// others.
bool asks_second_cache() {
#if defined(__x86_64__)
  static const bool result = [] {
    unsigned signature = 0, unused = 0;
    __get_cpuid(1, &signature, &unused, &unused, &unused);
    const unsigned family = (signature >> 8 & 0xf) + (signature >> 20 & 0xff);
    return __builtin_cpu_is("amd") && family == 0x19 && __builtin_cpu_supports("avx512f");
  }();
  return result;
#else
  return false;
#endif
}

}  // namespace vllm_lite
