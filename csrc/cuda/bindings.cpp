// Python bindings of the CUDA kernels: vllm_lite._cuda, called by vllm_lite/kernels/gpu/cuda/ops.py.
#include <nanobind/nanobind.h>

#include "cuda/calls.h"

NB_MODULE(_cuda, m) {
  m.def("attend", vllm_lite_cuda_attend);
  m.def("write_cache", vllm_lite_cuda_write_cache);
  m.def("copy_blocks", vllm_lite_cuda_copy_blocks);
}
