// The products of the level with tiles as a library of their own, for tests: the same sources as in
// _cpu, on the emulated unit, or with the real instructions where VLLM_LITE_TRAPPED_TILES says
// that somebody answers for them (trap.cpp). Operations take a list of words, the fields of
// their structs in order, as in bindings.cpp.
#include <stdint.h>

#include <bit>
#include <type_traits>

#include "cpu/fields.h"
#include "cpu/isa.h"
#include "cpu/kernels/amx/products.h"
#include "cpu/kernels/kernels.h"
#include "cpu/ops.h"
#include "cpu/thread_pool.h"

namespace vllm_lite {

static_assert(VLLM_LITE_HAS_TILES);

// What the operations below take; there is no other kernel here.
const KernelTable& kernels() {
  static const KernelTable table = [] {
    KernelTable made = {};
    made.attention = &amx::kAttention;
    made.linear = amx::linear;
    made.widen_rows = amx::widen_rows;
    made.grouped_product = amx::grouped_product;
    return made;
  }();
  return table;
}

bool asks_second_cache() { return true; }

namespace {

// A number, an address, or the bits of a float.
struct Word {
  int64_t bits = 0;

  template <class T>
    requires std::is_scalar_v<T>
  operator T() const {
    if constexpr (std::is_pointer_v<T>) {
      return reinterpret_cast<T>(bits);
    } else if constexpr (std::is_same_v<T, float>) {
      return std::bit_cast<float>(static_cast<int32_t>(bits));
    } else {
      return static_cast<T>(bits);
    }
  }
};

template <class P>
struct LinearFields {
  int64_t num_tokens;
  P p;
};

template <class Batch>
struct AttentionFields {
  Batch batch;
  Attention p;
};

template <class Struct, size_t kLeftOut>
Struct struct_of(const Word* words) {
  return make_struct<Struct>(words,
                             std::make_index_sequence<num_fields<Struct, Word>() - kLeftOut>());
}

}  // namespace
}  // namespace vllm_lite

using namespace vllm_lite;

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void vllm_lite_linear(const Word* words) {
  const auto call = struct_of<LinearFields<Linear>, 1>(words);
  linear(call.p, call.num_tokens);
}

EXPORT void vllm_lite_gated_linear(const Word* words) {
  const auto call = struct_of<LinearFields<Linear>, 1>(words);
  gated_linear(call.p, call.num_tokens);
}

EXPORT void vllm_lite_grouped_linear(const Word* words) {
  const auto call = struct_of<LinearFields<GroupedLinear>, 0>(words);
  grouped_linear(call.p, call.num_tokens);
}

EXPORT void vllm_lite_paged_attention(const Word* words) {
  const auto call = struct_of<AttentionFields<AttentionBatch>, 1>(words);
  paged_attention(call.p, call.batch);
}

EXPORT void vllm_lite_encoder_attention(const Word* words) {
  const auto call = struct_of<AttentionFields<EncoderBatch>, 0>(words);
  encoder_attention(call.p, call.batch);
}

EXPORT void vllm_lite_set_num_threads(const Word* words) { set_num_threads(*words); }

EXPORT int64_t vllm_lite_tiles_multiply_rightly() { return amx::tiles_multiply_rightly(); }
