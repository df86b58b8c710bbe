#include "megatron/training/run/fault_injector.h"

#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <csignal>
#include <cstring>
#include <deque>
#include <limits>
#include <thread>

#include "megatron/base/error.h"
#include "megatron/config/sources/string_list.h"

namespace megatron {
namespace {

using FaultKind = InjectedFault::Kind;

constexpr std::array<std::string_view, 9> kFaultNames{"throw", "kill",     "stop",      "slow",   "hang",
                                                      "nan",   "bit_flip", "disk_full", "network"};
constexpr double kSlowSeconds = 0.1;
constexpr rlim_t kFullBytes = 16 << 10;  // log lines still find room

template <class T>
bool read_number(std::string_view text, T& value) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  return problem == std::errc() && end == text.data() + text.size() && value >= 0;
}

InjectedFault parse_fault(std::string_view text) {
  const auto refuse = [&](std::string_view problem) {
    return ConfigError(
        fmt::format("--inject-fault {}: {}; write KIND@RANK:ITERATION, such as kill@2:10, with one of {}",
                    text, problem, "throw, kill, stop, slow, hang, nan, bit_flip, disk_full, network"));
  };
  const size_t at = text.find('@'), colon = text.find(':');
  if (at == std::string_view::npos || colon == std::string_view::npos || colon < at)
    throw refuse("it does not say which rank and iteration");
  const auto name = std::find(kFaultNames.begin(), kFaultNames.end(), text.substr(0, at));
  if (name == kFaultNames.end()) throw refuse("there is no such kind");
  InjectedFault fault;
  fault.kind = static_cast<FaultKind>(name - kFaultNames.begin());
  std::string_view ranks = text.substr(at + 1, colon - at - 1), when = text.substr(colon + 1);
  if (fault.kind == FaultKind::network) {
    const size_t dash = ranks.find('-');
    if (dash == std::string_view::npos || !read_number(ranks.substr(dash + 1), fault.peer))
      throw refuse("a lost network is between two ranks, network@2-3:10");
    ranks = ranks.substr(0, dash);
  }
  if (fault.kind == FaultKind::slow) {
    fault.seconds = kSlowSeconds;
    if (const size_t equals = when.find('='); equals != std::string_view::npos) {
      if (!read_number(when.substr(equals + 1), fault.seconds)) throw refuse("the seconds are no number");
      when = when.substr(0, equals);
    }
  }
  if (!read_number(ranks, fault.rank)) throw refuse("the rank is no number");
  if (!read_number(when, fault.iteration) || fault.iteration < 1)
    throw refuse("the iteration is no number from 1 on");
  return fault;
}

// A weight of this rank, of which a value is damaged.
const Tensor& damaged_weight(RunView& view) {
  view.trainer.finish_parameters();
  for (const Parameter* parameter : view.trainer.parameters())
    if (!parameter->sharded && parameter->value.numel() > 0) return parameter->value;
  fail("--inject-fault: this rank has no whole weight to damage; shard fewer things");
}

void write_first(RunView& view, const Tensor& weight, const std::function<void(char*)>& change) {
  std::array<char, 8> bytes{};
  const size_t size = size_of(weight.dtype());
  view.ctx.runtime->copy_to_host(bytes.data(), weight.raw(), size, view.ctx.stream.native());
  change(bytes.data());
  view.ctx.runtime->copy_from_host(weight.raw(), bytes.data(), size, view.ctx.stream.native());
  view.ctx.stream.synchronize();
}

class FaultInjector final : public Callback {
 public:
  FaultInjector(std::vector<InjectedFault> faults, int first_rank, int ranks_here)
      : first_rank_(first_rank), ranks_here_(ranks_here) {
    for (InjectedFault& fault : faults) planted_.emplace_back(fault);
  }

  void on(RunEvent event, RunView& view) override {
    if (event == RunEvent::train_end) return set_disk_full(false);
    if (event != RunEvent::step_start) return;
    const int numbered = view.world.world_ranks()[static_cast<size_t>(view.world.rank())];
    const int rank = first_rank_ + numbered % ranks_here_;
    const int64_t iteration = view.state.iteration + 1;
    for (Planted& planted : planted_) {
      const InjectedFault& fault = planted.fault;
      if (fault.rank != rank || iteration < fault.iteration) continue;
      if (fault.kind == FaultKind::slow) {
        std::this_thread::sleep_for(std::chrono::duration<double>(fault.seconds));
      } else if (fault.kind == FaultKind::disk_full && iteration == fault.iteration + 1) {
        set_disk_full(false);
      } else if (iteration == fault.iteration && !planted.done.exchange(true)) {
        act(fault, view);
      }
    }
  }

 private:
  struct Planted {
    explicit Planted(const InjectedFault& fault) : fault(fault) {}
    InjectedFault fault;
    std::atomic<bool> done = false;
  };

  void act(const InjectedFault& fault, RunView& view) {
    switch (fault.kind) {
      case FaultKind::throws:
        fail("a planted fault of rank {} before iteration {}", fault.rank, fault.iteration);
      case FaultKind::kill:
        ::kill(::getpid(), SIGKILL);
        break;
      case FaultKind::stop:
        ::kill(::getpid(), SIGSTOP);
        break;
      case FaultKind::hang:
        while (true) {
          view.world.require_running();
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
      case FaultKind::nan:
        return write_first(view, damaged_weight(view), [](char* bytes) { std::memset(bytes, 0xff, 8); });
      case FaultKind::bit_flip: {
        // A high bit of the mantissa makes a value that is wrong, and finite.
        const Tensor& weight = damaged_weight(view);
        const size_t byte = weight.dtype() == DType::BF16 ? 0 : size_of(weight.dtype()) - 2;
        return write_first(view, weight, [&](char* bytes) { bytes[byte] ^= 0x20; });
      }
      case FaultKind::disk_full:
        return set_disk_full(true);
      case FaultKind::network: {
        const int peer = view.world.rank() + fault.peer - fault.rank;
        require(peer >= 0 && peer < view.world.size() && view.world.disconnect(peer),
                "--inject-fault network@{}-{}: no connection joins these ranks; it takes processes over TCP",
                fault.rank, fault.peer);
        return;
      }
      case FaultKind::slow:
        break;
    }
  }

  // Lowers the size that files of this process may have, and raises it again.
  void set_disk_full(bool full) {
    if (full == full_.exchange(full)) return;
    rlimit limit{};
    ::getrlimit(RLIMIT_FSIZE, &limit);
    if (full) {
      std::signal(SIGXFSZ, SIG_IGN);  // writes fail instead
      before_ = limit.rlim_cur;
    }
    limit.rlim_cur = full ? kFullBytes : before_.load();
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }

  int first_rank_, ranks_here_;
  std::deque<Planted> planted_;
  std::atomic<bool> full_ = false;
  std::atomic<rlim_t> before_ = RLIM_INFINITY;
};

}  // namespace

std::vector<InjectedFault> parse_faults(std::span<const std::string> texts) {
  std::vector<InjectedFault> faults;
  for (const std::string& text : texts)
    for_each_word(text, [&](std::string_view words) {
      while (!words.empty()) {
        const size_t comma = std::min(words.find(','), words.size());
        if (comma > 0) faults.push_back(parse_fault(words.substr(0, comma)));
        words.remove_prefix(std::min(comma + 1, words.size()));
      }
    });
  return faults;
}

std::shared_ptr<Callback> fault_injector(std::vector<InjectedFault> faults, int first_rank, int ranks_here) {
  return std::make_shared<FaultInjector>(std::move(faults), first_rank, ranks_here);
}

}  // namespace megatron
