#include "megatron/rl/environments/program.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "megatron/base/error.h"

extern char** environ;

namespace megatron::rl {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kMaxKept = 64 * 1024;
constexpr auto kLookAgain = std::chrono::milliseconds(5);

class Descriptor {
 public:
  explicit Descriptor(int value = -1) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Descriptor() { close(); }
  int get() const { return value_; }
  void close() {
    if (value_ >= 0) ::close(value_);
    value_ = -1;
  }

 private:
  int value_;
};

// A file in memory: unlike a pipe it takes the input at once, whether the program reads it or not.
Descriptor input_file(const std::string& input) {
  Descriptor file(::memfd_create("megatron-reward", MFD_CLOEXEC));
  require(file.get() >= 0, "program: no room for its input: {}", std::strerror(errno));
  for (size_t done = 0; done < input.size();) {
    const ssize_t count = ::write(file.get(), input.data() + done, input.size() - done);
    require(count > 0, "program: no room for its input: {}", std::strerror(errno));
    done += static_cast<size_t>(count);
  }
  require(::lseek(file.get(), 0, SEEK_SET) == 0, "program: its input cannot be rewound");
  return file;
}

struct Output {
  Descriptor end;  // closed when all has come
  std::string* text;

  // False where nothing has come.
  void read_some() {
    std::array<char, 4096> piece;
    while (end.get() >= 0) {
      const ssize_t count = ::read(end.get(), piece.data(), piece.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) return;
      if (count <= 0) return end.close();
      text->append(piece.data(), std::min(static_cast<size_t>(count), kMaxKept - text->size()));
    }
  }
};

// A child in a process group of its own.
class Child {
 public:
  Child(const std::vector<std::string>& command, int input, int output, int errors) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, errors, STDERR_FILENO);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setpgroup(&attributes, 0);
    std::vector<std::string> words = command;
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const int problem = ::posix_spawnp(&pid_, arguments[0], &actions, &attributes, arguments.data(), environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    if (problem != 0) pid_ = -1;
    require(problem == 0, "program: {} cannot be started: {}", command[0], std::strerror(problem));
  }
  ~Child() {
    if (pid_ > 0) end();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Whether it has ended. It is then still a zombie, so that its id and its group's are not given to others.
  bool has_ended() const {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == pid_;
  }
  // Kills what is left of the group, and returns the status of the child.
  int end() {
    ::kill(-pid_, SIGKILL);
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_ = -1;
};

}  // namespace

ProgramEnd run_program(const std::vector<std::string>& command, const std::string& input,
                       std::chrono::milliseconds limit) {
  require(!command.empty(), "program: no command");
  const auto deadline = Clock::now() + limit;
  ProgramEnd end;
  const Descriptor given = input_file(input);
  std::array<Output, 2> outputs;
  std::array<Descriptor, 2> writers;
  for (size_t i = 0; i < 2; ++i) {
    std::array<int, 2> ends{};
    require(::pipe2(ends.data(), O_CLOEXEC) == 0, "program: a pipe cannot be made: {}", std::strerror(errno));
    outputs[i] = {Descriptor(ends[0]), i == 0 ? &end.output : &end.errors};
    writers[i] = Descriptor(ends[1]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  Child child(command, given.get(), writers[0].get(), writers[1].get());
  for (Descriptor& writer : writers) writer.close();

  while (!child.has_ended()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) {
      end.timed_out = true;
      break;
    }
    // poll() passes over closed ends, whose descriptors are negative.
    std::array<pollfd, 2> entries = {pollfd{outputs[0].end.get(), POLLIN, 0},
                                     pollfd{outputs[1].end.get(), POLLIN, 0}};
    ::poll(entries.data(), entries.size(), static_cast<int>(std::min(left, kLookAgain).count()));
    for (Output& output : outputs) output.read_some();
  }
  const int status = child.end();
  for (Output& output : outputs) output.read_some();
  if (WIFEXITED(status)) end.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
  return end;
}

std::string find_program(const std::string& name) {
  if (name.empty()) return "";
  if (name.find('/') != std::string::npos) return ::access(name.c_str(), X_OK) == 0 ? name : "";
  const char* path = std::getenv("PATH");
  std::string_view rest = path ? path : "/bin:/usr/bin";
  while (true) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    std::string candidate = (folder.empty() ? "." : std::string(folder)) + "/" + name;
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
    if (folder.size() == rest.size()) return "";
    rest.remove_prefix(folder.size() + 1);
  }
}

}  // namespace megatron::rl
