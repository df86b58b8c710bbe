#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
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

// These calls of the calling thread, and of those that it begins from now on, take this much longer: as on a
// slow disk. The kernel asks a thread of ours before it goes on. Once a thread; false where the kernel does
// not do that.
inline bool slow_down(const std::vector<unsigned>& numbers, std::chrono::milliseconds delay) {
  std::vector<sock_filter> filter = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const unsigned number : numbers) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
  const long listener =
      ::syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
  if (listener < 0) return false;
  std::thread([fd = static_cast<int>(listener), delay] {
    while (true) {
      seccomp_notif asked{};
      if (::ioctl(fd, SECCOMP_IOCTL_NOTIF_RECV, &asked) != 0) {
        if (errno == EINTR) continue;
        return;
      }
      std::this_thread::sleep_for(delay);
      seccomp_notif_resp answer{};
      answer.id = asked.id;
      answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
      ::ioctl(fd, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
  }).detach();
  return true;
}

// A disk of this many bytes at a folder, which this process alone sees. False where mounting is not allowed.
inline bool mount_small_disk(const std::string& folder, size_t bytes) {
  if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  return ::mount("none", folder.c_str(), "tmpfs", 0, ("size=" + std::to_string(bytes)).c_str()) == 0;
}

}  // namespace megatron::testing
