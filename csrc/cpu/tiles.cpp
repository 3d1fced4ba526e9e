#include "cpu/tiles.h"

#if VLLM_LITE_HAS_AMX

#include <cpuid.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <initializer_list>

namespace vllm_lite {

namespace amx {
bool tiles_multiply_rightly();
}

namespace {

// Of arch_prctl(2).
constexpr long kRequestPermission = 0x1023;
constexpr long kTileData = 18;

// A palette's properties that the kernels assume.
constexpr unsigned kNumTiles = 8, kTileRows = 16, kTileRowBytes = 64;

constexpr unsigned kMaxTrySeconds = 5;

bool processor_has_tiles() {
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kBFloat16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;
  constexpr unsigned kWanted = kBFloat16 | kTile | kInt8;
  if ((d & kWanted) != kWanted) return false;
  if (!__get_cpuid_count(0x1d, 1, &a, &b, &c, &d)) return false;
  return b >> 16 >= kNumTiles && (b & 0xffff) >= kTileRowBytes && (c & 0xffff) >= kTileRows;
}

// Whether the system saves tiles per thread.
bool system_saves_tiles() {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return false;
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr uint32_t kTileState = 1u << 17 | 1u << 18;
  return (low & kTileState) == kTileState;
}

// For all threads of this process and its children. Refused by systems that know no tiles, and
// where a thread's stack for signals is too small to hold them.
bool is_permitted() { return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0; }

bool can_multiply() { return is_permitted() && amx::tiles_multiply_rightly(); }

// In a child process, so that a crash does no harm. Nothing here takes a lock.
[[noreturn]] void try_and_exit(bool (*attempt)()) {
  const rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  sigset_t fatal;
  sigemptyset(&fatal);
  for (const int number : {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGTRAP, SIGSYS, SIGALRM}) {
    signal(number, SIG_DFL);
    sigaddset(&fatal, number);
  }
  sigprocmask(SIG_UNBLOCK, &fatal, nullptr);
  alarm(kMaxTrySeconds);
  const bool is_right = attempt();
  for (;;) syscall(SYS_exit_group, is_right ? 0 : 1);
}

bool succeeds_in_a_child(bool (*attempt)()) {
  // A fork without a signal at its end, so that nobody else takes it for a child of theirs, and
  // without the handlers of fork().
  const long child = syscall(SYS_clone, 0L, 0L, 0L, 0L, 0L);
  if (child == 0) try_and_exit(attempt);
  if (child < 0) return false;
  int status;
  while (waitpid(static_cast<pid_t>(child), &status, __WCLONE) < 0) {
    if (errno != EINTR) return false;
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

bool tiles_are_usable() {
  static const bool usable = processor_has_tiles() && system_saves_tiles() &&
                             succeeds_in_a_child(can_multiply) && is_permitted();
  return usable;
}

}  // namespace vllm_lite

#endif
