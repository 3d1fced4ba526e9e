// What this machine can do at most: reading memory, and multiply-adds out of registers.
//
// limits THREADS prints one line of JSON: bytes read from memory, and operations (a multiplication
// and an addition are two) a second, in billions, by all threads together; 0 where the processor
// has no such instruction. The best of several passes counts: a limit is what is possible.
// Compiled for the machine it runs on.
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr size_t kArrayBytes = size_t{1} << 30;
constexpr int kPasses = 7;
constexpr int64_t kRounds = 3'000'000;

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
typedef uint64_t Words __attribute__((vector_size(kVectorBytes)));
typedef float Floats __attribute__((vector_size(kVectorBytes)));
// Independent chains: enough to cover an instruction's latency, few enough for the registers.
constexpr int kChains = 12;

// Seconds of the fastest of several passes of `body(thread)` on all threads.
template <class Body>
double fastest(int num_threads, Body body) {
  double best = 1e30;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (int t = 1; t < num_threads; ++t) threads.emplace_back(body, t);
    body(0);
    for (std::thread& thread : threads) thread.join();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    best = std::min(best, taken.count());
  }
  return best;
}

// Makes the compiler know nothing of a register's value, nor think that it is not needed.
template <class T>
void hide(T& value) {
  asm volatile("" : "+v"(value));
}

// Operations a second of all threads, in billions, where `multiply_add(sum, a, b)` does so many.
template <class Vector, class MultiplyAdd>
double register_rate(int num_threads, double operations, MultiplyAdd multiply_add) {
  const double seconds = fastest(num_threads, [=](int) {
    Vector sums[kChains] = {}, a = {}, b = {};
    hide(a);
    hide(b);
#pragma GCC unroll 12
    for (int k = 0; k < kChains; ++k) hide(sums[k]);
    for (int64_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
      for (int k = 0; k < kChains; ++k) sums[k] = multiply_add(sums[k], a, b);
    }
#pragma GCC unroll 12
    for (int k = 0; k < kChains; ++k) hide(sums[k]);
  });
  return operations * kChains * kRounds * num_threads / seconds * 1e-9;
}

double read_bandwidth(int num_threads) {
  const size_t count = kArrayBytes / sizeof(Words);
  auto* words = static_cast<Words*>(std::aligned_alloc(1 << 21, kArrayBytes));
  if (words == nullptr) return 0;
  std::memset(words, 1, kArrayBytes);
  const double seconds = fastest(num_threads, [=](int thread) {
    const size_t begin = count * thread / num_threads / 8 * 8;
    const size_t end = count * (thread + 1) / num_threads / 8 * 8;
    Words sums[8] = {};
    for (size_t i = begin; i < end; i += 8) {
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k) sums[k] ^= words[i + k];
    }
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) hide(sums[k]);
  });
  std::free(words);
  return kArrayBytes / seconds * 1e-9;
}

double float32_rate(int num_threads) {
  return register_rate<Floats>(num_threads, 2.0 * kVectorBytes / 4,
                               [](Floats sum, Floats a, Floats b) { return a * b + sum; });
}

#if defined(__AMX_BF16__) && defined(__AMX_INT8__)

struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Linux gives the tiles to a process that asks.
bool has_tiles() {
  constexpr int kRequest = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

// Operations of one instruction on tiles of 16 rows of 64 bytes.
double tile_rate(int num_threads, double operations, void (*multiply_add)()) {
  if (!has_tiles()) return 0;
  constexpr int64_t kTileRounds = kRounds / 20;
  const double seconds = fastest(num_threads, [=](int) {
    const TileShapes shapes;
    _tile_loadconfig(&shapes);
    for (int64_t i = 0; i < kTileRounds; ++i) multiply_add();
    _tile_release();
  });
  return operations * 4 * kTileRounds * num_threads / seconds * 1e-9;
}

double bfloat16_rate(int num_threads) {
  return tile_rate(num_threads, 2.0 * 16 * 16 * 32, [] {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  });
}

double int8_rate(int num_threads) {
  return tile_rate(num_threads, 2.0 * 16 * 16 * 64, [] {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  });
}

#else

double bfloat16_rate([[maybe_unused]] int num_threads) {
#ifdef __AVX512BF16__
  return register_rate<__m512>(num_threads, 2.0 * 32, [](__m512 sum, __m512 a, __m512 b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  });
#else
  return 0;
#endif
}

double int8_rate([[maybe_unused]] int num_threads) {
#ifdef __AVX512VNNI__
  return register_rate<__m512i>(num_threads, 2.0 * 64, [](__m512i sum, __m512i a, __m512i b) {
    return _mm512_dpbusd_epi32(sum, a, b);
  });
#else
  return 0;
#endif
}

#endif

}  // namespace

int main(int argc, char** argv) {
  const int num_threads = argc > 1 ? std::max(1, std::atoi(argv[1])) : 1;
  std::printf(
      "{\"read_gb_s\": %.2f, \"float32_gflop_s\": %.0f, \"bfloat16_gflop_s\": %.0f, "
      "\"int8_gop_s\": %.0f}\n",
      read_bandwidth(num_threads), float32_rate(num_threads), bfloat16_rate(num_threads),
      int8_rate(num_threads));
}
