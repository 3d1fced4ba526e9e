// Device functions beyond plain C++, one PTX instruction each, and the launch.
//
// With VLLM_LITE_EMULATED the same names come from tests/csrc/cuda/emulation, which runs kernels on
// the host. Nothing else here or in the kernels knows which of the two it is.
#pragma once

#include <stdint.h>

#ifdef VLLM_LITE_EMULATED
#include "cuda/emulation/emulator.h"
#else

#include <cuda_runtime.h>

#include "cuda/small_floats.h"

namespace vllm_lite::cuda {

extern __shared__ __align__(16) unsigned char dynamic_shared_memory[];

__device__ inline unsigned char* shared_memory() { return dynamic_shared_memory; }

__device__ inline uint32_t shared_address(const void* place) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(place));
}

// Sixteen bytes from global to shared memory, not waited for; zeros instead if not `is_read`.
__device__ inline void copy_async(void* to, const void* from, bool is_read) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(is_read ? 16 : 0));
}

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until all of this thread's groups but the last kPending have arrived.
template <int kPending>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Lane l names row l % 8 of matrix l / 8, all of 8 x 8 two-byte elements; it receives elements
// (l / 4, 2 * (l % 4)) and the next, or transposed (2 * (l % 4), l / 4) and the one below.
__device__ inline void load_matrices(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

__device__ inline void load_matrices(uint32_t (&to)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(shared_address(row))
               : "memory");
}

__device__ inline void load_transposed(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

__device__ inline void load_transposed(uint32_t (&to)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(shared_address(row))
               : "memory");
}

// sum [16, 8] += a [16, 16] * b [16, 8]. With g = lane / 4 and t = lane % 4 a lane holds
//   a: (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8), each with the next column;
//   b: (2t, g), (2t + 8, g), each with the next row;  sum: (g, 2t), +1, (g + 8, 2t), +1.
template <class T>
__device__ void multiply_tiles(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
__device__ inline void multiply_tiles<Half>(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ inline void multiply_tiles<BFloat16>(float (&sum)[4], const uint32_t (&a)[4],
                                                uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The value of the lane whose number differs in the bits of `mask`.
__device__ inline float exchange(float value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

// 2 ** x to about two units in the last place; 1 at 0 and 0 at minus infinity, exactly.
__device__ inline float power_of_two(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

__device__ inline float multiply(float a, float b) { return __fmul_rn(a, b); }
__device__ inline float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }

// Two numbers in one register, the first in its low half.
template <class T>
__device__ uint32_t pack(float low, float high);

template <>
__device__ inline uint32_t pack<Half>(float low, float high) {
  uint32_t result;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}

template <>
__device__ inline uint32_t pack<BFloat16>(float low, float high) {
  uint32_t result;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}

// Products of two packed pairs. The added -0 changes none; sm_80 has no plain product of bfloat16.
template <class T>
__device__ uint32_t multiply_pairs(uint32_t a, uint32_t b);

template <>
__device__ inline uint32_t multiply_pairs<Half>(uint32_t a, uint32_t b) {
  uint32_t result;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(0x80008000u));
  return result;
}

template <>
__device__ inline uint32_t multiply_pairs<BFloat16>(uint32_t a, uint32_t b) {
  uint32_t result;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(0x80008000u));
  return result;
}

// The four bytes of a and b (numbered 0 to 7) that the digits of `selector` name, lowest first.
__device__ inline uint32_t select_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  return __byte_perm(a, b, selector);
}

// Queues a kernel; returns null or CUDA's error message.
template <class Work>
const char* launch(void (*kernel)(Work), dim3 grid, int threads, int shared_bytes, void* stream,
                   const Work& work) {
  constexpr int kWithoutAsking = 48 * 1024;
  cudaError_t error = cudaSuccess;
  if (shared_bytes > kWithoutAsking) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  }
  if (error == cudaSuccess) {
    kernel<<<grid, threads, shared_bytes, static_cast<cudaStream_t>(stream)>>>(work);
    error = cudaGetLastError();
  }
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace vllm_lite::cuda

#endif
