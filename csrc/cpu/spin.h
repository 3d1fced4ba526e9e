// Spinning for another thread or process, for as long as that is cheaper than a system call.
#pragma once

#include <chrono>

namespace vllm_lite {

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins for some tens of microseconds; returns whether ready() held.
template <class Ready>
bool spin_until(Ready&& ready) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(40);
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      pause_cpu();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

}  // namespace vllm_lite
