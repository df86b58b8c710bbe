#include "megatron/resilience/process_launcher.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <thread>

#include "megatron/base/error.h"
#include "megatron/base/interruption.h"
#include "megatron/base/seconds_since.h"
#include "megatron/comm/patience.h"

extern char** environ;

namespace megatron {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kResume = 16, kPreempted = 18, kPeerLost = 19;
constexpr auto kLookAgain = std::chrono::milliseconds(50);

bool is_lost(const ProcessEnd& end) { return end.signal != 0 || end.code == kPeerLost; }

bool asks_for_retry(const ProcessEnd& end) {
  return is_lost(end) || end.code == kResume || end.code == kPreempted;
}

std::string tell_end(const ProcessEnd& end) {
  if (end.signal != 0) return fmt::format("killed by SIG{}", sigabbrev_np(end.signal));
  switch (end.code) {
    case 0:
      return "done";
    case 1:
      return "refused its settings (exit code 1)";
    case 2:
      return "did not understand its command line (exit code 2)";
    case 3:
      return "failed (exit code 3)";
    case kResume:
      return "wants another machine to compute a result again (exit code 16)";
    case 17:
      return "has a result that cannot be trusted (exit code 17)";
    case kPreempted:
      return "saved and wants to be started again (exit code 18)";
    case kPeerLost:
      return "lost a peer (exit code 19)";
    default:
      return fmt::format("ended with exit code {}", end.code);
  }
}

int free_port() {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool bound = listener >= 0 && ::bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0;
  if (bound) ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  if (listener >= 0) ::close(listener);
  require(bound, "launch: no port of this machine is free");
  return ntohs(address.sin_port);
}

// One end of a pipe that a process writes its lines to.
struct Stream {
  int descriptor = -1;
  std::string line;  // as far as it has come
  bool is_error = false;
};

struct Child {
  pid_t pid = -1;
  std::array<Stream, 2> streams;
  int control = -1;           // of a process on another machine: takes names of signals
  std::FILE* file = nullptr;  // its own log
  bool stopped = false;       // by SIGSTOP
  std::optional<ProcessEnd> end;
  std::optional<Patience> until_again;  // it is started again to join the others
};

// A folder for one start of a job, in which its processes meet.
class MeetingFolder {
 public:
  explicit MeetingFolder(bool wanted) {
    if (!wanted) return;
    path_ = (std::filesystem::temp_directory_path() / "megatron-launch-XXXXXX").string();
    require(::mkdtemp(path_.data()) != nullptr, "launch: {} cannot be made: {}", path_, std::strerror(errno));
  }
  ~MeetingFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  MeetingFolder(const MeetingFolder&) = delete;
  MeetingFolder& operator=(const MeetingFolder&) = delete;
  const std::string& path() const { return path_; }  // "": none

 private:
  std::string path_;
};

// The rank in the job of a process of this machine.
int rank_in_job(const LaunchJob& job, int local_rank) { return job.node * job.processes + local_rank; }

// Whether a variable means the same on another machine.
bool travels(std::string_view variable) {
  constexpr std::array<std::string_view, 6> prefixes = {
      "PATH=", "LD_LIBRARY_PATH=", "NCCL_", "MEGATRON_", "CUDA_", "OMP_"};
  return std::ranges::any_of(prefixes, [&](std::string_view prefix) { return variable.starts_with(prefix); });
}

// The environment of one process: this one's, with torchrun's variables. Of a process on another machine:
// torchrun's, and what this one says of programs, NCCL and us.
std::vector<std::string> environment_of(const LaunchJob& job, int rank, int port, int restart,
                                        const std::string& folder, bool rejoins) {
  const bool remote = !job.hosts.empty();
  const RemotePlace place =
      remote ? place_of(job.hosts, rank) : RemotePlace{static_cast<size_t>(job.node), rank, job.processes};
  std::map<std::string, std::string> own = {{"RANK", std::to_string(rank_in_job(job, rank))},
                                            {"LOCAL_RANK", std::to_string(place.local_rank)},
                                            {"GROUP_RANK", std::to_string(place.host)},
                                            {"WORLD_SIZE", std::to_string(job.nodes * job.processes)},
                                            {"LOCAL_WORLD_SIZE", std::to_string(place.local_size)},
                                            {"MASTER_ADDR", job.master_address},
                                            {"MASTER_PORT", std::to_string(port)},
                                            {"TORCHELASTIC_RESTART_COUNT", std::to_string(restart)},
                                            {"TORCHELASTIC_MAX_RESTARTS", std::to_string(job.max_restarts)},
                                            {"MEGATRON_LAUNCH", "1"}};
  if (!folder.empty()) own["MEGATRON_STORE"] = folder;
  if (rejoins) own["MEGATRON_REJOIN"] = "1";
  std::vector<std::string> all;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    if (remote && !travels(text)) continue;
    if (own.count(text.substr(0, text.find('='))) == 0) all.push_back(text);
  }
  for (const auto& [name, value] : own) all.push_back(name + "=" + value);
  return all;
}

std::vector<std::string> own_environment() {
  std::vector<std::string> all;
  for (char** entry = environ; *entry; ++entry) all.emplace_back(*entry);
  return all;
}

// How a process ended that a shell on another machine tells of: by a signal above 128; 255 is ssh's own,
// whose connection or machine was lost.
ProcessEnd remote_end(const ProcessEnd& end) {
  if (end.code == 255) return {kPeerLost, 0};
  return end.code > 128 ? ProcessEnd{0, end.code - 128} : end;
}

// One start of all processes, until the last has ended.
class Attempt {
 public:
  Attempt(const LaunchJob& job, int restart, const Interruption& interruption, const Log& log, std::FILE* out)
      : job_(job),
        restart_(restart),
        log_(log),
        interruption_(interruption),
        out_(out),
        children_(static_cast<size_t>(job.processes)),
        folder_(job.rejoin) {}
  ~Attempt() {
    signal_all(SIGKILL);
    for (Child& child : children_) {
      if (child.pid > 0 && !child.end) ::waitpid(child.pid, nullptr, 0);
      for (Stream& stream : child.streams)
        if (stream.descriptor >= 0) ::close(stream.descriptor);
      if (child.control >= 0) ::close(child.control);
      if (child.file) std::fclose(child.file);
    }
  }

  std::vector<ProcessEnd> run() {
    port_ = job_.master_port > 0 ? job_.master_port : free_port();
    for (int rank = 0; rank < job_.processes; ++rank) open_log(rank);
    for (int rank = 0; rank < job_.processes; ++rank) start(rank, false);
    while (true) {
      gather(kLookAgain);
      look();
      if (std::ranges::all_of(children_, [](const Child& child) { return child.end.has_value(); })) break;
      pass_signals_on();
      end_the_rest();
      start_lost_ones();
    }
    gather(std::chrono::milliseconds(0));
    std::vector<ProcessEnd> ends;
    for (Child& child : children_) ends.push_back(*child.end);
    return ends;
  }

  int64_t iteration() const { return iteration_; }     // the last that was logged
  const std::string& saved() const { return saved_; }  // the last checkpoint that was told
  bool interrupted() const { return passed_on_ != 0; }

 private:
  void open_log(int rank) {
    if (job_.log_folder.empty()) return;
    std::error_code problem;
    std::filesystem::create_directories(job_.log_folder, problem);
    const std::string path =
        fmt::format("{}/start_{}_rank_{}.log", job_.log_folder, restart_, rank_in_job(job_, rank));
    std::FILE* const file = std::fopen(path.c_str(), "we");
    if (!file)
      throw ConfigError(fmt::format("--log-dir: {} cannot be written: {}; give another folder", path,
                                    std::strerror(errno)));
    children_[static_cast<size_t>(rank)].file = file;
  }

  void start(int rank, bool rejoins) {
    Child& child = children_[static_cast<size_t>(rank)];
    std::array<std::array<int, 2>, 2> pipes{};
    for (auto& ends : pipes)
      require(::pipe2(ends.data(), O_CLOEXEC) == 0, "launch: a pipe cannot be made: {}",
              std::strerror(errno));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipes[0][1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, pipes[1][1], STDERR_FILENO);
    std::vector<std::string> variables = environment_of(job_, rank, port_, restart_, folder_.path(), rejoins),
                             words = job_.command;
    std::array<int, 2> control = {-1, -1};
    if (!job_.hosts.empty()) {
      const RemoteHost& host = job_.hosts[place_of(job_.hosts, rank).host];
      words = remote_command(job_.ssh, host, std::filesystem::current_path().string(), variables, words);
      variables = own_environment();
      require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control.data()) == 0,
              "launch: a socket cannot be made: {}", std::strerror(errno));
      posix_spawn_file_actions_adddup2(&actions, control[0], STDIN_FILENO);
      child.control = control[1];
    }
    std::vector<char*> environment, arguments;
    for (std::string& text : variables) environment.push_back(text.data());
    for (std::string& text : words) arguments.push_back(text.data());
    environment.push_back(nullptr);
    arguments.push_back(nullptr);
    // In a group of its own, so that a Ctrl-C of the terminal comes once, passed on.
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setpgroup(&attributes, 0);
    const int problem =
        ::posix_spawnp(&child.pid, arguments[0], &actions, &attributes, arguments.data(), environment.data());
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    for (size_t i = 0; i < pipes.size(); ++i) {
      ::close(pipes[i][1]);
      child.streams[i] = {pipes[i][0], "", i == 1};
      ::fcntl(pipes[i][0], F_SETFL, O_NONBLOCK);
    }
    if (control[0] >= 0) ::close(control[0]);
    if (problem != 0) {
      child.pid = -1;
      throw ConfigError(fmt::format("launch: {} cannot be started: {}", words[0], std::strerror(problem)));
    }
  }

  void gather(std::chrono::milliseconds patience) {
    std::vector<pollfd> entries;
    std::vector<std::pair<size_t, size_t>> whose;
    for (size_t rank = 0; rank < children_.size(); ++rank)
      for (size_t i = 0; i < 2; ++i)
        if (const int descriptor = children_[rank].streams[i].descriptor; descriptor >= 0) {
          entries.push_back({descriptor, POLLIN, 0});
          whose.emplace_back(rank, i);
        }
    if (entries.empty()) return std::this_thread::sleep_for(patience);
    if (::poll(entries.data(), entries.size(), static_cast<int>(patience.count())) <= 0) return;
    for (size_t entry = 0; entry < entries.size(); ++entry)
      if (entries[entry].revents) read(whose[entry].first, whose[entry].second);
  }

  void read(size_t rank, size_t index) {
    Stream& stream = children_[rank].streams[index];
    std::array<char, 4096> buffer{};
    while (true) {
      const ssize_t got = ::read(stream.descriptor, buffer.data(), buffer.size());
      if (got < 0) return;  // nothing more yet
      if (got == 0) {
        if (!stream.line.empty()) say(rank, stream);
        ::close(std::exchange(stream.descriptor, -1));
        return;
      }
      for (const char c : std::string_view(buffer.data(), static_cast<size_t>(got))) {
        if (c == '\n')
          say(rank, stream);
        else
          stream.line += c;
      }
    }
  }

  void say(size_t rank, Stream& stream) {
    const std::string line = std::exchange(stream.line, {});
    if (std::FILE* file = children_[rank].file) fmt::print(file, "{}\n", line);
    if (const size_t at = line.find("iteration "); at != std::string::npos)
      iteration_ = std::max<int64_t>(iteration_, std::atoll(line.c_str() + at + 10));
    if (line.starts_with("saved ")) saved_ = line.substr(6);
    const int told = rank_in_job(job_, static_cast<int>(rank));
    const bool shown = job_.shown.empty() || std::ranges::count(job_.shown, told) > 0;
    if (!shown || line.find(job_.filter) == std::string::npos) return;
    if (stream.is_error) return log_.write(LogLevel::info, fmt::format("[{}] {}", told, line));
    fmt::print(out_, "[{}] {}\n", told, line);
    std::fflush(out_);
  }

  void look() {
    for (Child& child : children_) {
      int status = 0;
      if (child.end || ::waitpid(child.pid, &status, WNOHANG | WUNTRACED | WCONTINUED) != child.pid) continue;
      child.stopped = WIFSTOPPED(status);
      if (WIFSTOPPED(status) || WIFCONTINUED(status)) continue;
      child.end = WIFSIGNALED(status) ? ProcessEnd{0, WTERMSIG(status)} : ProcessEnd{WEXITSTATUS(status), 0};
      if (child.control >= 0) {
        child.end = remote_end(*child.end);
        ::close(std::exchange(child.control, -1));
      }
      for_the_rest_.emplace(duration_of(job_.grace));
      if (job_.rejoin && is_lost(*child.end) && rejoined_ < job_.max_restarts) {
        ++rejoined_;
        child.until_again.emplace(duration_of(job_.backoff));
      }
    }
  }

  static Clock::duration duration_of(double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

  // Where others still run and none has ended well: then the run goes on without the lost ones.
  void start_lost_ones() {
    const auto runs = [](const Child& child) { return !child.end; };
    const auto lost = [](const Child& child) { return !child.end || is_lost(*child.end); };
    if (passed_on_ != 0 || !std::ranges::any_of(children_, runs) || !std::ranges::all_of(children_, lost))
      return;
    for (int rank = 0; rank < job_.processes; ++rank) {
      Child& child = children_[static_cast<size_t>(rank)];
      if (!child.until_again || !child.until_again->over()) continue;
      log_.warning("launch: rank {}: {}; started again to join the others ({} of {})",
                   rank_in_job(job_, rank), tell_end(*child.end), rejoined_, job_.max_restarts);
      for (Stream& stream : child.streams)
        if (stream.descriptor >= 0) ::close(std::exchange(stream.descriptor, -1));
      child.until_again.reset();
      child.end.reset();
      child.stopped = false;
      start(rank, true);
    }
  }

  // A process on another machine is killed when its connection ends; other signals are passed by name.
  void signal_all(int signal) {
    for (const Child& child : children_) {
      if (child.pid <= 0 || child.end) continue;
      if (child.control < 0 || signal == SIGKILL) {
        ::kill(-child.pid, signal);
      } else {
        const std::string line = std::string(sigabbrev_np(signal)) + "\n";
        if (::send(child.control, line.data(), line.size(), MSG_NOSIGNAL) < 0) ::kill(-child.pid, SIGKILL);
      }
    }
  }

  void pass_signals_on() {
    const int signal = interruption_.signal();
    if (interruption_.came_twice()) signal_all(SIGKILL);
    if (signal == 0 || passed_on_ != 0) return;
    passed_on_ = signal;
    signal_all(signal);
  }

  // Processes that will not end by themselves: all that are left are stopped, or the run has ended without
  // them. Where one was only lost, the others may go on for long.
  void end_the_rest() {
    const auto ended_run = [](const Child& child) { return child.end && !is_lost(*child.end); };
    const auto idle = [](const Child& child) { return child.end || child.stopped; };
    const bool waited = for_the_rest_ && for_the_rest_->over();
    if (std::ranges::all_of(children_, idle) || (std::ranges::any_of(children_, ended_run) && waited))
      signal_all(SIGKILL);
  }

  const LaunchJob& job_;
  int restart_;
  Log log_;
  const Interruption& interruption_;
  std::FILE* out_;
  std::vector<Child> children_;
  MeetingFolder folder_;
  int port_ = 0;
  int rejoined_ = 0;                      // starts of single processes
  std::optional<Patience> for_the_rest_;  // since a process has ended
  int passed_on_ = 0;
  int64_t iteration_ = 0;
  std::string saved_;
};

}  // namespace

JobVerdict judge(const std::vector<ProcessEnd>& ends) {
  const auto well = [](const ProcessEnd& end) { return end.exit_code() == 0; };
  if (std::ranges::any_of(ends, well) &&
      std::ranges::all_of(ends, [&](const ProcessEnd& end) { return well(end) || is_lost(end); }))
    return JobVerdict::done;
  return std::ranges::all_of(ends, [&](const ProcessEnd& end) { return well(end) || asks_for_retry(end); })
             ? JobVerdict::retry
             : JobVerdict::give_up;
}

std::string tell_ends(const std::vector<ProcessEnd>& ends, int first_rank) {
  std::map<std::string, std::vector<int>> ranks;
  for (const ProcessEnd& end : ends) ranks[tell_end(end)].push_back(first_rank++);
  std::string text;
  for (const auto& [how, who] : ranks)
    text += fmt::format("{}rank{} {}: {}", text.empty() ? "" : "; ", who.size() > 1 ? "s" : "",
                        fmt::join(who, " "), how);
  return text;
}

int exit_code_of(const std::vector<ProcessEnd>& ends) {
  if (judge(ends) == JobVerdict::done) return 0;
  int code = 0;
  for (const ProcessEnd& end : ends) {
    if (end.exit_code() != 0 && !asks_for_retry(end)) return end.code;
    if (end.code == kResume || end.code == kPreempted) code = end.code;
    if (code == 0 && end.exit_code() != 0) code = kPeerLost;
  }
  return code;
}

int launch_job(const LaunchJob& job, const Log& log, std::FILE* out) {
  const Interruption interruption(0, SecondInterrupt::remembered);
  double pause = job.backoff;
  for (int restart = 0;; ++restart) {
    const auto begin = Clock::now();
    Attempt attempt(job, restart, interruption, log, out);
    const std::vector<ProcessEnd> ends = attempt.run();
    const double seconds = seconds_since(begin);
    const JobVerdict verdict = judge(ends);
    if (verdict == JobVerdict::done) {
      if (std::ranges::any_of(ends, [](const ProcessEnd& end) { return end.exit_code() != 0; }))
        log.info("launch: done without some of its processes ({})", tell_ends(ends, rank_in_job(job, 0)));
      return 0;
    }
    const std::string what = fmt::format(
        "{}; iteration {} was logged last, {}; {:.1f} s since the start",
        tell_ends(ends, rank_in_job(job, 0)), attempt.iteration(),
        attempt.saved().empty() ? "nothing was saved" : "saved last: " + attempt.saved(), seconds);
    const bool ends_here =
        verdict == JobVerdict::give_up || restart >= job.max_restarts || attempt.interrupted();
    if (ends_here) {
      log.error("launch: {}; not started again: {}", what,
                verdict == JobVerdict::give_up ? "it would not help"
                : attempt.interrupted()        ? "a signal came"
                                               : fmt::format("{} restarts were made", restart));
      return exit_code_of(ends);
    }
    log.warning("launch: restart {} of {}: {}; starting again in {:.1f} s", restart + 1, job.max_restarts,
                what, pause);
    for (double waited = 0; waited < pause && interruption.signal() == 0; waited += 0.05)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (interruption.signal() != 0) return exit_code_of(ends);
    pause *= 2;
  }
}

}  // namespace megatron
