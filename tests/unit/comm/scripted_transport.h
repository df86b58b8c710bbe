#pragma once

#include <functional>
#include <mutex>
#include <set>
#include <thread>

#include "megatron/comm/processes/frame.h"
#include "unit/comm/faulty_ranks.h"

namespace megatron::testing {

// A transport whose other processes the test plays: the test tells what they say and when they are lost, and
// reads what was sent to them.
class ScriptedTransport final : public Transport {
 public:
  struct Script {
    std::mutex mutex;
    std::vector<std::function<void(const Receiver&)>> events;
    std::vector<std::pair<FrameHead, std::string>> sent;
    std::set<int> stopped;  // processes

    void says(int process, FrameHead head, const std::string& text) {
      std::lock_guard lock(mutex);
      events.emplace_back([=](const Receiver& receiver) {
        receiver.frame(process, make_frame(head, nullptr, text, std::make_shared<FramePool>()));
      });
    }
    void delivers(int process, FrameHead head, float value) {
      std::lock_guard lock(mutex);
      head.payload = sizeof value;
      events.emplace_back([=](const Receiver& receiver) {
        receiver.frame(process, make_frame(head, &value, "", std::make_shared<FramePool>()));
      });
    }
    void loses(int process) {
      std::lock_guard lock(mutex);
      events.emplace_back([=](const Receiver& receiver) { receiver.lost(process, "the test says so"); });
    }
    void stops(int process) {
      std::lock_guard lock(mutex);
      stopped.insert(process);
    }
    // How many frames of a kind a process, or a rank, was sent so far.
    int64_t count(FrameKind kind, int to) {
      std::lock_guard lock(mutex);
      return std::ranges::count_if(
          sent, [&](const auto& frame) { return frame.first.kind == kind && frame.first.to == to; });
    }
    void wait_until_sent(FrameKind kind, int to, int64_t times = 1) {
      wait_until("a frame of the process", [&] { return count(kind, to) >= times; });
    }
  };

  ScriptedTransport(int process, int processes, std::shared_ptr<Script> script)
      : process_(process), processes_(processes), script_(std::move(script)) {}

  int process() const override { return process_; }
  int processes() const override { return processes_; }
  void send(int /*process*/, Frame frame) override {
    std::lock_guard lock(script_->mutex);
    script_->sent.emplace_back(head_of(frame), std::string(text_of(frame)));
  }
  void poll(std::chrono::milliseconds, const Receiver& receiver) override {
    std::vector<std::function<void(const Receiver&)>> events;
    {
      std::lock_guard lock(script_->mutex);
      events.swap(script_->events);
    }
    for (const auto& event : events) event(receiver);
    if (events.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  bool idle() override { return true; }
  PeerState state_of(int process) override {
    std::lock_guard lock(script_->mutex);
    return script_->stopped.count(process) > 0 ? PeerState::Stopped : PeerState::Unknown;
  }

 private:
  int process_, processes_;
  std::shared_ptr<Script> script_;
};

}  // namespace megatron::testing
