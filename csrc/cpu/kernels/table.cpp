namespace vllm_lite::VLLM_LITE_ISA { }
