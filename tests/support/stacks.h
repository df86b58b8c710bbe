#pragma once

#include <dirent.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

// A test of ranks that wait for each other should say where they do, should it never end.
namespace megatron::testing {

inline void tell_own_stack(int) {
  void* frames[64];
  backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
  const char end[] = "---\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, end, sizeof end - 1);
}

// What a crash leaves behind; then the signal has its usual end.
inline void tell_crash(int signal) {
  tell_own_stack(signal);
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

// After so many seconds every thread tells its stack, and the process ends with 124.
inline void end_with_stacks_after(std::chrono::seconds limit) {
  void* frame = nullptr;
  backtrace(&frame, 1);  // loads what it needs, which a handler must not
  ::signal(SIGUSR2, tell_own_stack);
  for (int crash : {SIGSEGV, SIGABRT, SIGBUS}) ::signal(crash, tell_crash);
  std::thread([limit] {
    std::this_thread::sleep_for(limit);
    if (DIR* tasks = ::opendir("/proc/self/task")) {
      while (const dirent* task = ::readdir(tasks))
        if (const int id = std::atoi(task->d_name); id > 0 && id != ::gettid()) {
          ::syscall(SYS_tgkill, ::getpid(), id, SIGUSR2);
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
        }
    }
    ::_exit(124);
  }).detach();
}

}  // namespace megatron::testing
