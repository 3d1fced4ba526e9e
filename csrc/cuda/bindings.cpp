// Python binding of the CUDA kernel: vllm_lite._cuda, called by vllm_lite/kernels/gpu/cuda/ops.py.
#include <nanobind/nanobind.h>

#include "cuda/calls.h"

NB_MODULE(_cuda, m) {
  m.def("attend", vllm_lite_cuda_attend);
}
