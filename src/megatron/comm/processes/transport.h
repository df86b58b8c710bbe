#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace megatron {

// Bytes on their way from one process to another, in memory of whole blocks: a transport may send those, and
// then the frame that arrives is longer by what fills the last.
struct Frame {
  static constexpr size_t kBlock = 64;
  Frame() = default;
  explicit Frame(size_t size) : size(size) {
    bytes = std::make_unique_for_overwrite<char[]>(blocks() * kBlock);
  }
  size_t blocks() const { return (size + kBlock - 1) / kBlock; }

  std::unique_ptr<char[]> bytes;
  size_t size = 0;
};

// Carries frames between processes: whole, and in order for each pair. One thread polls; any may send.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int process() const = 0;
  virtual int processes() const = 0;

  virtual void send(int process, Frame frame) = 0;  // queued; returns at once

  struct Receiver {
    std::function<void(int process, Frame frame)> frame;
    std::function<void(int process, const std::string& why)> lost;  // nothing more will come from it
  };
  // Moves what can be moved. Where nothing can, sleeps until something happens, at most for `patience`.
  virtual void poll(std::chrono::milliseconds patience, const Receiver& receiver) = 0;
  virtual bool idle() = 0;  // all that was queued has left
};

}  // namespace megatron
