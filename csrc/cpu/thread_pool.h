// The process's compute threads. The caller takes part in every job; helpers spin for some tens
// of microseconds after a job, then sleep, so an idle pool costs nothing.
#pragma once

#include <cstdint>

namespace vllm_lite {

// Threads that a job may use, the calling one among them.
int num_threads();

// Ends surplus helpers at once; starts missing ones with the next job.
// Throws std::invalid_argument unless 1 <= count <= 1024.
void set_num_threads(int count);

// The default: the processors that this process may run on.
int available_processors();

using RangeFunction = void (*)(void* context, int64_t begin, int64_t end);

// Calls function on disjoint ranges of at most `grain` that cover [0, count), from this thread
// and the helpers; returns when all are done. The function must not throw. Callers do not wait for
// one another: while one has the helpers, the others do their work on their own thread.
void parallel_ranges(int64_t count, int64_t grain, RangeFunction function, void* context);

template <class Body>
void parallel_for(int64_t count, int64_t grain, Body&& body) {
  parallel_ranges(
      count, grain,
      [](void* context, int64_t begin, int64_t end) { (*static_cast<Body*>(context))(begin, end); },
      &body);
}

// As parallel_for, but each thread walks through a span of [0, count), so that
// data prefetched beyond the end of a range is what the same thread reads next. Every span has
// as many ranges, of nearly equal size, so that threads of equal speed end together.
template <class Body>
void parallel_spans(int64_t count, int64_t grain, Body&& body) {
  const int64_t num_spans = num_threads();
  const int64_t num_rounds = (count + grain * num_spans - 1) / (grain * num_spans);
  const int64_t num_ranges = count < num_spans ? count : num_rounds * num_spans;
  parallel_for(num_ranges, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t range = i % num_spans * num_rounds + i / num_spans;
      const int64_t start = range * count / num_ranges;
      body(start, (range + 1) * count / num_ranges);
    }
  });
}

// Divides rows of `work` elements each among threads. Waking a helper costs time: few rows stay on
// the calling thread.
template <class Body>
void parallel_rows(int64_t num_rows, int64_t work, Body&& body) {
  constexpr int64_t kWorkOfRange = 16 * 1024;
  const int64_t grain = work < kWorkOfRange ? kWorkOfRange / (work < 1 ? 1 : work) : 1;
  if (num_rows <= grain) return body(0, num_rows);
  parallel_spans(num_rows, grain, body);
}

}  // namespace vllm_lite
