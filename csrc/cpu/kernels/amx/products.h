// What products may ask of tiles; where VLLM_LITE_HAS_TILES is 0 there is nothing here.
#pragma once

#include "cpu/kernels/amx/tiles.h"

#if VLLM_LITE_HAS_TILES

namespace vllm_lite::VLLM_LITE_ISA {

// linear() of bfloat16.
void linear_on_tiles(const Linear&, int64_t first_row, int64_t end_row, int64_t begin_panel,
                     int64_t end_panel);

// Whether products of known numbers come out right; to be asked where a wrong answer, or a crash,
// does no harm. The system must have given the process its tiles.
bool tiles_multiply_rightly();

}  // namespace vllm_lite::VLLM_LITE_ISA

#endif
