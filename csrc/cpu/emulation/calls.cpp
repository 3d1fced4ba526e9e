// The products of the level with tiles as a library of their own, for tests: the same sources as in
// _cpu, on the emulated unit, or with the real instructions where VLLM_LITE_TRAPPED_TILES says
// that somebody answers for them (trap.cpp). Numbers and their order: those of bindings.cpp.
#include <stdint.h>

#include "cpu/isa.h"
#include "cpu/kernels/amx/products.h"
#include "cpu/kernels/kernels.h"
#include "cpu/ops.h"
#include "cpu/thread_pool.h"

namespace vllm_lite {

static_assert(VLLM_LITE_HAS_TILES);

// What the products' operations take; there is no other kernel here.
const KernelTable& kernels() {
  static const KernelTable table = [] {
    KernelTable made = {};
    made.linear = amx::linear;
    made.quantize_rows = amx::quantize_rows;
    made.quantized_product = amx::quantized_product;
    return made;
  }();
  return table;
}

namespace {

template <class T>
T* pointer(int64_t address) {
  return reinterpret_cast<T*>(address);
}

}  // namespace
}  // namespace vllm_lite

using namespace vllm_lite;

extern "C" __attribute__((visibility("default"))) void vllm_lite_linear(
    int64_t x, int64_t packed, int64_t bias, int64_t out, int64_t dtype, int64_t out_dtype,
    int64_t num_tokens, int64_t num_outputs, int64_t num_inputs, int64_t x_stride,
    int64_t out_stride) {
  linear({static_cast<DType>(dtype), static_cast<DType>(out_dtype), pointer<void>(x), x_stride,
          pointer<void>(packed), pointer<float>(bias), pointer<void>(out), out_stride, num_outputs,
          num_inputs, false},
         num_tokens);
}

extern "C" __attribute__((visibility("default"))) void vllm_lite_gated_linear(
    int64_t x, int64_t packed, int64_t bias, int64_t out, int64_t dtype, int64_t num_tokens,
    int64_t num_outputs, int64_t num_inputs, int64_t x_stride, int64_t out_stride) {
  gated_linear({static_cast<DType>(dtype), static_cast<DType>(dtype), pointer<void>(x), x_stride,
                pointer<void>(packed), pointer<float>(bias), pointer<void>(out), out_stride,
                num_outputs, num_inputs, false},
               num_tokens);
}

extern "C" __attribute__((visibility("default"))) void vllm_lite_quantized_linear(
    int64_t x, int64_t parts, int64_t bias, int64_t out, int64_t dtype, int64_t out_dtype,
    int64_t num_tokens, int64_t num_parts, int64_t num_inputs, int64_t x_stride,
    int64_t out_stride) {
  quantized_linear({static_cast<DType>(dtype), static_cast<DType>(out_dtype), pointer<void>(x),
                    x_stride, pointer<QuantizedPart>(parts), num_parts, pointer<float>(bias),
                    pointer<void>(out), out_stride, num_inputs},
                   num_tokens);
}

extern "C" __attribute__((visibility("default"))) void vllm_lite_set_num_threads(int64_t count) {
  set_num_threads(static_cast<int>(count));
}

extern "C" __attribute__((visibility("default"))) int64_t vllm_lite_tiles_multiply_rightly() {
  return amx::tiles_multiply_rightly();
}
