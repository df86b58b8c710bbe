#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace megatron {

// Memory of large frames that are gone, for those that come: pages that the system must clear first cost more
// than the bytes that are then copied there. Any thread may take and give.
class FramePool {
 public:
  struct Block {
    char* bytes = nullptr;
    size_t size = 0;
  };
  ~FramePool();
  Block take(size_t bytes);  // of at least that size
  void give(Block block) noexcept;

 private:
  std::mutex mutex_;
  std::vector<Block> free_;
  size_t kept_ = 0;
};

// To where a frame's memory came from.
struct ReturnFrame {
  std::shared_ptr<FramePool> pool;  // null: the heap
  size_t size = 0;
  void operator()(char* bytes) const noexcept;
};

// Bytes on their way from one process to another, in memory of whole blocks: a transport may send those, and
// then the frame that arrives is longer by what fills the last.
struct Frame {
  static constexpr size_t kBlock = 64;
  Frame() = default;
  Frame(size_t size, const std::shared_ptr<FramePool>& pool);
  size_t blocks() const { return (size + kBlock - 1) / kBlock; }

  std::unique_ptr<char[], ReturnFrame> bytes;
  size_t size = 0;
};

// What the kernel says of another process. Only one of the same machine can be asked for.
enum class PeerState : uint8_t { Unknown, Runs, Stopped };

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
    std::function<void(int process)> returned = {};                 // one that was lost was started again
  };
  // Moves what can be moved. Where nothing can, sleeps until something happens, at most for `patience`.
  virtual void poll(std::chrono::milliseconds patience, const Receiver& receiver) = 0;
  virtual bool idle() = 0;  // all that was queued has left
  // Breaks the connection to a process, as a network does. From any thread.
  virtual void disconnect(int /*process*/) {}

  virtual PeerState state_of(int /*process*/) { return PeerState::Unknown; }

  const std::shared_ptr<FramePool>& pool() const { return pool_; }

 private:
  std::shared_ptr<FramePool> pool_ = std::make_shared<FramePool>();
};

}  // namespace megatron
