#include "megatron/training/health/straggler_detector.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "megatron/base/error.h"
#include "megatron/base/median.h"
#include "megatron/base/seconds_since.h"
#include "megatron/comm/string_collectives.h"
#include "megatron/device/gpu_info.h"

namespace megatron {
namespace {

constexpr size_t kStepsMeasured = 1024;  // between two reports; later ones take the place of the oldest

std::string machine_name(const RankContext& ctx) {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  std::string text = host;
  if (ctx.device.is_cuda())
    text += fmt::format(", GPU {} ({})", int{ctx.device.index}, gpu_name(ctx.device.index));
  return text;
}

}  // namespace

WaitMeter::WaitMeter(RankContext& ctx) : ctx_(ctx), next_(ctx.tracer) { ctx_.tracer = this; }

WaitMeter::~WaitMeter() {
  if (ctx_.tracer == this) ctx_.tracer = next_;
}

void WaitMeter::op(const char* name, Phase phase, const Cost& cost) {
  if (next_) next_->op(name, phase, cost);
}

Event& WaitMeter::mark() {
  if (used_ == events_.size()) events_.emplace_back(ctx_.runtime, true);
  events_[used_].record(ctx_.stream);
  return events_[used_++];
}

void WaitMeter::begin(const char* name) {
  if (next_) next_->begin(name);
  if (captured_ > 0 || std::strcmp(name, "capture") == 0) ++captured_;
  const bool timed = !waiting_ && captured_ == 0 && std::strcmp(name, kWaitRange) == 0;
  open_.push_back(timed);
  if (!timed) return;
  waiting_ = true;
  if (ctx_.device.is_cuda())
    mark();
  else
    start_ = Clock::now();
}

void WaitMeter::end() {
  if (next_) next_->end();
  if (open_.empty()) return;  // of a range that began before anybody listened
  if (captured_ > 0) --captured_;
  const bool timed = open_.back();
  open_.pop_back();
  if (!timed) return;
  waiting_ = false;
  if (ctx_.device.is_cuda())
    mark();
  else
    seconds_ += seconds_since(start_);
}

double WaitMeter::finish_step() {
  if (used_ > 0) ctx_.stream.synchronize();
  for (size_t i = 0; i + 1 < used_; i += 2) seconds_ += events_[i + 1].seconds_since(events_[i]);
  used_ = 0;
  return seconds_;
}

StragglerSwitch::StragglerSwitch(int port, bool on) : on_(on) {
  if (port > 0) thread_ = std::thread([this, port] { serve(port); });
}

StragglerSwitch::~StragglerSwitch() {
  ends_ = true;
  if (thread_.joinable()) thread_.join();
}

// Only this machine can reach it: whoever connects changes what the run says.
void StragglerSwitch::serve(int port) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const bool bound = listener >= 0 &&
                     ::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                     ::listen(listener, 4) == 0;
  while (bound && !ends_) {
    pollfd waiting{listener, POLLIN, 0};
    if (::poll(&waiting, 1, 200) <= 0) continue;
    const int client = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) continue;
    const bool on = !on_.load();
    on_ = on;
    const std::string body = fmt::format("reports on slow ranks are {}\n", on ? "on" : "off");
    const std::string answer = fmt::format(
        "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{}", body.size(), body);
    std::array<char, 1024> request;
    pollfd asking{client, POLLIN, 0};
    if (::poll(&asking, 1, 200) > 0) static_cast<void>(::recv(client, request.data(), request.size(), 0));
    static_cast<void>(::send(client, answer.data(), answer.size(), MSG_NOSIGNAL));
    ::close(client);
  }
  if (listener >= 0) ::close(listener);
}

StragglerDetector::StragglerDetector(RankContext& ctx, const ProcessGroup& world,
                                     const ParallelContext& parallel, const LoggerConfig& settings)
    : ctx_(ctx),
      world_(world),
      settings_(settings),
      // Stages have different layers, and smaller replicas larger parts of them.
      peers_(parallel.rank(Axis::pp) * 4096 + parallel.size(Axis::tp)),
      waits_(ctx) {
  if (world.rank() == 0)
    switch_ = std::make_unique<StragglerSwitch>(static_cast<int>(settings.straggler_ctrlr_port),
                                                !settings.disable_straggler_on_startup);
}

void StragglerDetector::start_step() { waits_.start_step(); }

void StragglerDetector::finish_step(double seconds) {
  const double waited = waits_.finish_step();
  if (std::exchange(first_step_, false)) return;
  if (busy_.size() == kStepsMeasured) {
    busy_.erase(busy_.begin());
    waited_.erase(waited_.begin());
  }
  busy_.push_back(std::max(0.0, seconds - waited));
  waited_.push_back(waited);
}

bool StragglerDetector::is_due() const {
  return switch_ && switch_->on() && !busy_.empty() &&
         seconds_since(reported_) >= settings_.straggler_report_time;
}

std::pair<std::string, bool> StragglerDetector::report() {
  reported_ = Clock::now();
  const double busy = median(busy_), wait = median(waited_);
  best_ = best_ > 0 ? std::min(best_, busy) : busy;
  busy_.clear();
  waited_.clear();
  const std::vector<double> own = {static_cast<double>(peers_), busy, wait, best_};
  const Tensor mine = ctx_.from_vector<double>(own, {4}), all = ctx_.empty({4 * world_.size()}, DType::F64);
  world_.all_gather(mine, all).wait();
  const std::vector<double> values = ctx_.to_vector<double>(all);
  std::vector<StragglerSample> samples;
  for (size_t i = 0; i < values.size(); i += 4)
    samples.push_back({static_cast<int64_t>(values[i]), values[i + 1], values[i + 2], values[i + 3]});
  const std::vector<RankScore> scores = straggler_scores(samples);
  const bool slow = !slow_ranks(scores, settings_).empty();
  std::vector<std::string> places;
  if (slow) places = all_gather_strings(world_, machine_name(ctx_));
  return {straggler_lines(scores, settings_, places), slow};
}

}  // namespace megatron
