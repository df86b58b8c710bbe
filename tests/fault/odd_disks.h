#pragma once

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace megatron::testing {

// Calls of the calling thread, and of those that it begins from now on, fail with this error where their
// third argument, a count of bytes for pwrite64, is at least `count`: as on a broken disk. False where the
// kernel does not do that.
inline bool fail_calls(unsigned number, int error, unsigned count = 0) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),  // its low half
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, count, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(filter), filter};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
  return ::syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0;
}

// No folder can be deleted, as where another machine reads a file that was in it.
inline bool keep_folders() {
  return fail_calls(__NR_rmdir, ENOTEMPTY) && fail_calls(__NR_unlinkat, ENOTEMPTY, AT_REMOVEDIR);
}

// The process that makes this call from now on ends with SIGSYS. False where the kernel does not do that.
inline bool forbid_call(unsigned number) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(filter), filter};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
  return ::syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0;
}

// A thread of ours answers these calls of the calling thread, and of those that it begins from now on: with
// an error, or 0 for the kernel to go on. Once a thread; false where the kernel does not do that.
inline bool answer_calls(const std::vector<unsigned>& numbers, std::function<int()> answer) {
  auto told = std::make_shared<std::promise<int>>();  // the calls may be those that begin threads
  std::thread([told, answer = std::move(answer)] {
    const int fd = told->get_future().get();
    while (fd >= 0) {
      // Kernels before 6.11 tell poll() alone that nobody is left who asks.
      pollfd ready{fd, POLLIN, 0};
      if (::poll(&ready, 1, -1) < 0) continue;
      if (ready.revents & POLLHUP) break;
      seccomp_notif asked{};
      if (::ioctl(fd, SECCOMP_IOCTL_NOTIF_RECV, &asked) != 0) continue;
      seccomp_notif_resp reply{};
      reply.id = asked.id;
      reply.error = -answer();
      if (reply.error == 0) reply.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
      ::ioctl(fd, SECCOMP_IOCTL_NOTIF_SEND, &reply);
    }
    if (fd >= 0) ::close(fd);
  }).detach();
  std::vector<sock_filter> filter = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const unsigned number : numbers) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  long listener = -1;
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
    listener = ::syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
  told->set_value(static_cast<int>(listener));
  return listener >= 0;
}

// They take this much longer, as on a slow disk.
inline bool slow_down(const std::vector<unsigned>& numbers, std::chrono::milliseconds delay) {
  return answer_calls(numbers, [delay] {
    std::this_thread::sleep_for(delay);
    return 0;
  });
}

// The first of them fails, as on a disk where something is being deleted.
inline bool fail_first(unsigned number, int error) {
  return answer_calls({number}, [error]() mutable { return std::exchange(error, 0); });
}

// So many threads can begin, and no more, as where the system has a limit.
inline bool limit_threads(int count) {
  return answer_calls({__NR_clone, __NR_clone3}, [count]() mutable { return --count >= 0 ? 0 : EAGAIN; });
}

// A file system of a kind at a folder, which this process alone sees. False where mounting is not allowed.
inline bool mount_disk(const std::string& folder, const char* kind, const std::string& options) {
  if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  return ::mount("none", folder.c_str(), kind, 0, options.c_str()) == 0;
}
inline bool mount_small_disk(const std::string& folder, size_t bytes) {
  return mount_disk(folder, "tmpfs", "size=" + std::to_string(bytes));
}

}  // namespace megatron::testing
