// What this machine can do at most: reading memory, and multiply-adds out of registers.
//
// limits THREADS prints one line of JSON: bytes read from memory, and operations (a multiplication
// and an addition are two) a second, in billions, by all threads together; 0 where the processor
// has no such instruction. A limit is what is possible: of several ways to read the fastest counts,
// of passes the median. Compiled for the machine it runs on.
#include <immintrin.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

namespace {

// As much as the weights of a case (BEYOND_CACHES in case.py), read over and over as they are: what
// the last cache keeps from one reading to the next counts here, too.
constexpr size_t kArrayBytes = size_t{256} << 20;
constexpr size_t kHugePage = size_t{2} << 20;
// Readings of the array for each time that threads are started.
constexpr int kReadings = 3;
constexpr int kReadPasses = 15;
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

// Seconds that `body(thread)` takes on all threads.
template <class Body>
double timed(int num_threads, const Body& body) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int t = 1; t < num_threads; ++t) threads.emplace_back(body, t);
  body(0);
  for (std::thread& thread : threads) thread.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Of the median of several passes, as a kernel's time is that of its median call.
template <class Body>
double median_pass(int num_threads, const Body& body) {
  std::array<double, kPasses> taken;
  for (double& seconds : taken) seconds = timed(num_threads, body);
  std::sort(taken.begin(), taken.end());
  return taken[kPasses / 2];
}

// Makes the compiler know nothing of a register's value, nor think that it is not needed.
template <class T>
void hide(T& value) {
  asm volatile("" : "+v"(value));
}

// Operations a second of all threads, in billions, where `multiply_add(sum, a, b)` does so many.
template <class Vector, class MultiplyAdd>
double register_rate(int num_threads, double operations, MultiplyAdd multiply_add) {
  const double seconds = median_pass(num_threads, [=](int) {
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

// Reads memory once in `kStreams` streams, prefetching `kAhead` bytes ahead (not at all if 0) with
// the locality of __builtin_prefetch: 2 into the second cache, 0 past the caches.
template <int kStreams, int kAhead, int kLocality>
void walk(const char* data, size_t num_bytes) {
  constexpr int kLine = 64, kStep = 4 * kLine;
  const size_t part = num_bytes / kStreams / kStep * kStep;
  Words sums[kStreams] = {};
  for (size_t at = 0; at < part; at += kStep) {
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s) {
      const char* step = data + s * part + at;
      if constexpr (kAhead > 0) {
#pragma GCC unroll 4
        for (int i = 0; i < kStep; i += kLine) __builtin_prefetch(step + kAhead + i, 0, kLocality);
      }
#pragma GCC unroll 16
      for (int i = 0; i < kStep; i += kVectorBytes) {
        sums[s] ^= *reinterpret_cast<const Words*>(step + i);
      }
    }
  }
#pragma GCC unroll 4
  for (int s = 0; s < kStreams; ++s) hide(sums[s]);
}

// Which of them is fastest depends on the processor, and on what else its memory is asked for.
constexpr void (*kWalks[])(const char*, size_t) = {
    walk<1, 0, 0>,     walk<2, 0, 0>,    walk<4, 0, 0>,    walk<1, 4096, 2>, walk<2, 4096, 2>,
    walk<4, 4096, 2>,  walk<2, 2048, 2>, walk<1, 4096, 0>, walk<2, 4096, 0>, walk<4, 2048, 0>,
    walk<1, 16384, 2>,
};

// Reads pieces in any order, prefetching the lines of pieces to come: as decode attention reads the
// blocks of a cache, of which a head of 64 in bfloat16 has 16 keys or values in a piece.
constexpr size_t kPiece = 2048;

template <int kAhead, int kLocality>
void jump(const char* data, const std::vector<uint32_t>& order, size_t first, size_t end) {
  Words sum = {};
  for (size_t i = first; i < end; ++i) {
    const char* piece = data + order[i] * kPiece;
    const char* later = data + order[std::min(i + kAhead, end - 1)] * kPiece;
    for (size_t at = 0; at < kPiece; at += 64) {
      __builtin_prefetch(later + at, 0, kLocality);
      for (int k = 0; k < 64; k += kVectorBytes) {
        sum ^= *reinterpret_cast<const Words*>(piece + at + k);
      }
    }
  }
  hide(sum);
}

constexpr void (*kJumps[])(const char*, const std::vector<uint32_t>&, size_t, size_t) = {
    jump<4, 2>, jump<8, 2>, jump<4, 3>};

struct Bandwidths {
  double front_to_back = 0, scattered = 0;
};

// Each by the way that is fastest in the median of passes in turns, in huge pages where they exist.
// A median, as a kernel's time is: for a second a virtual machine may get twice its share of memory.
Bandwidths read_bandwidths(int num_threads) {
  auto* data = static_cast<char*>(std::aligned_alloc(kHugePage, kArrayBytes));
  if (data == nullptr) return {};
  madvise(data, kArrayBytes, MADV_HUGEPAGE);
  std::memset(data, 1, kArrayBytes);
  constexpr size_t kPieces = kArrayBytes / kPiece, kNumWalks = std::size(kWalks);
  std::vector<uint32_t> order(kPieces);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937());
  std::array<double, kReadPasses> taken[kNumWalks + std::size(kJumps)];
  for (int pass = 0; pass < kReadPasses; ++pass) {
    for (size_t w = 0; w < std::size(taken); ++w) {
      taken[w][pass] = timed(num_threads, [&, w](int thread) {
        const size_t first = kPieces * thread / num_threads;
        const size_t end = kPieces * (thread + 1) / num_threads;
        for (int i = 0; i < kReadings; ++i) {
          if (w < kNumWalks) {
            kWalks[w](data + first * kPiece, (end - first) * kPiece);
          } else {
            kJumps[w - kNumWalks](data, order, first, end);
          }
        }
      });
    }
  }
  std::free(data);
  Bandwidths found;
  for (size_t w = 0; w < std::size(taken); ++w) {
    const auto middle = taken[w].begin() + kReadPasses / 2;
    std::nth_element(taken[w].begin(), middle, taken[w].end());
    double& best = w < kNumWalks ? found.front_to_back : found.scattered;
    best = std::max(best, kReadings * kArrayBytes / *middle * 1e-9);
  }
  return found;
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
  const double seconds = median_pass(num_threads, [=](int) {
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
  const Bandwidths reads = read_bandwidths(num_threads);
  std::printf(
      "{\"read_gb_s\": %.2f, \"float32_gflop_s\": %.0f, \"bfloat16_gflop_s\": %.0f, "
      "\"int8_gop_s\": %.0f, \"scattered_gb_s\": %.2f}\n",
      reads.front_to_back, float32_rate(num_threads), bfloat16_rate(num_threads),
      int8_rate(num_threads), reads.scattered);
}
