// GEMMs on tiles; empty if VLLM_LITE_HAS_TILES is 0.
#pragma once

#include "cpu/kernels/amx/tiles.h"

#if VLLM_LITE_HAS_TILES

namespace vllm_lite::VLLM_LITE_ISA {

// linear() of bfloat16.
void linear_on_tiles(const Linear&, int64_t first_row, int64_t end_row, int64_t begin_panel,
                     int64_t end_panel);

// Whether GEMMs of known numbers are correct; to be called where a wrong result or a crash
// does no harm. The system must have granted tiles to the process.
bool tiles_multiply_rightly();

}  // namespace vllm_lite::VLLM_LITE_ISA

#endif
