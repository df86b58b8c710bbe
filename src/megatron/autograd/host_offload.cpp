#include "megatron/autograd/host_offload.h"

#include <deque>

#include "megatron/device/host_memory.h"

namespace megatron {

// What tensors on the host share; it outlives the packer while any of them is left.
struct HostOffload::State {
  explicit State(RankContext& ctx)
      : runtime(ctx.runtime), host(make_host_allocator(ctx.runtime)), copies(ctx.runtime) {}
  ~State() {
    if (!outgoing.empty()) copies.synchronize();
  }

  struct Outgoing {
    Tensor source;  // must not be given to others before it was read
    Event read;
  };

  // Lets go of what has been copied; waits for the oldest where more than `most` are under way.
  void release(RankContext& ctx, size_t most) {
    while (!outgoing.empty() && (outgoing.front().read.done() || outgoing.size() > most)) {
      if (!outgoing.front().read.done()) outgoing.front().read.wait(ctx.stream);
      outgoing.pop_front();
    }
  }

  std::shared_ptr<DeviceRuntime> runtime;
  std::shared_ptr<Allocator> host;
  Stream copies;
  std::deque<Outgoing> outgoing;
};

struct HostOffload::Entry {
  Entry(std::shared_ptr<State> state, const Tensor& tensor, std::weak_ptr<Entry> before)
      : state(std::move(state)),
        source(tensor),
        shape(tensor.shape()),
        dtype(tensor.dtype()),
        bytes(tensor.bytes()),
        before(std::move(before)),
        storage(this->state->host, bytes, MemoryTag::Activation) {}

  // Starts the copy back where it has not begun.
  void fetch(RankContext& ctx) {
    if (fetched) return;
    State& s = *state;
    Event free(s.runtime);  // the memory may still be read by earlier work of the device
    fetched = ctx.empty(shape, dtype);
    free.record(ctx.stream);
    free.wait(s.copies);
    s.runtime->copy_from_host_async(fetched.raw(), storage.data(), bytes, s.copies.native());
    arrived = std::make_unique<Event>(s.runtime);
    arrived->record(s.copies);
  }

  std::shared_ptr<State> state;
  Tensor source;  // until the layer ends
  Shape shape;
  DType dtype;
  size_t bytes;
  std::weak_ptr<Entry> before;
  Storage storage;
  Tensor fetched;
  std::unique_ptr<Event> arrived;
};

namespace {

class OnHost final : public PackedTensor {
 public:
  OnHost(std::shared_ptr<HostOffload::Entry> entry, const Shape& shape, int prefetch)
      : entry_(std::move(entry)), shape_(shape), prefetch_(prefetch) {}
  Tensor unpack(RankContext& ctx) override {
    entry_->fetch(ctx);
    if (entry_->arrived) entry_->arrived->wait(ctx.stream);
    std::shared_ptr<HostOffload::Entry> next = entry_;
    for (int i = 0; i < prefetch_ && (next = next->before.lock()); ++i) next->fetch(ctx);
    return entry_->fetched.view(shape_);
  }

 private:
  std::shared_ptr<HostOffload::Entry> entry_;
  Shape shape_;
  int prefetch_;
};

// Both contiguous; shapes may differ.
bool same_elements(const Tensor& a, const Tensor& b) {
  return a.defined() && a.storage().same(b.storage()) && a.offset() == b.offset() && a.numel() == b.numel();
}

}  // namespace

HostOffload::HostOffload(RankContext& ctx, const OffloadOptions& options)
    : options_(options), state_(std::make_shared<State>(ctx)) {}
HostOffload::~HostOffload() = default;

void HostOffload::forget() {
  for (auto& weak : recent_)
    if (auto entry = weak.lock()) entry->source = {};
  recent_.clear();
}

void HostOffload::start_pass() {
  forget();
  last_.reset();
  eligible_bytes_ = moved_bytes_ = 0;
}

std::unique_ptr<PackedTensor> HostOffload::pack(RankContext& ctx, const Tensor& tensor) {
  if (tensor.numel() < options_.min_elements || !is_floating(tensor.dtype()) || !tensor.is_contiguous())
    return nullptr;
  // Host memory is this machine's memory where the device is the CPU: nothing is won by fetching early.
  int prefetch = ctx.device.is_cuda() ? options_.prefetch : 0;
  for (auto& weak : recent_)
    if (auto entry = weak.lock(); entry && same_elements(entry->source, tensor))
      return std::make_unique<OnHost>(entry, tensor.shape(), prefetch);
  auto bytes = static_cast<int64_t>(tensor.bytes());
  eligible_bytes_ += bytes;
  if (static_cast<double>(moved_bytes_ + bytes) > options_.fraction * static_cast<double>(eligible_bytes_))
    return nullptr;
  moved_bytes_ += bytes;

  State& s = *state_;
  auto entry = std::make_shared<Entry>(state_, tensor, last_);
  Event made(s.runtime);
  made.record(ctx.stream);
  made.wait(s.copies);
  if (!ctx.device.is_meta())
    s.runtime->copy_to_host_async(entry->storage.data(), tensor.raw(), tensor.bytes(), s.copies.native());
  Event read(s.runtime);
  read.record(s.copies);
  s.outgoing.push_back({tensor, std::move(read)});
  s.release(ctx, static_cast<size_t>(options_.max_in_flight));

  last_ = entry;
  recent_.push_back(entry);
  return std::make_unique<OnHost>(entry, tensor.shape(), prefetch);
}

MemoryStatistics HostOffload::statistics() const { return state_->host->statistics(); }

}  // namespace megatron
