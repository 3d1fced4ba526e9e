// The kernels of one instruction set, as its table names them.
#pragma once

#include "cpu/kernels/simd.h"

namespace vllm_lite::VLLM_LITE_ISA {

#define VLLM_LITE_DECLARATION(result, name, ...) result name(__VA_ARGS__);
VLLM_LITE_KERNELS(VLLM_LITE_DECLARATION)
#undef VLLM_LITE_DECLARATION
extern const AttentionKernels kAttention;

}  // namespace vllm_lite::VLLM_LITE_ISA
