#include "cpu/kernels/kernels.h"

namespace vllm_lite::VLLM_LITE_ISA {

extern const KernelTable kTable;
#define VLLM_LITE_NAME(result, name, ...) name,
const KernelTable kTable = {VLLM_LITE_KERNELS(VLLM_LITE_NAME) &kAttention};

}  // namespace vllm_lite::VLLM_LITE_ISA
