// Snapshots on a device that lets streams run in any order that their events allow: an update may change a
// group of tensors once these were copied, whatever is still to be copied of others.
#include "megatron/checkpoint/snapshot.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <deque>

#include "support/test_device.h"

namespace megatron::testing {
namespace {

// Host memory as a device. What is put on the copies' stream runs where somebody waits for it; the rank's own
// stream runs at once.
class LateCopies final : public DeviceRuntime {
 public:
  Device device() const override { return kGpu; }
  void* acquire_memory(size_t bytes) override { return std::calloc(bytes, 1); }
  void release_memory(void* data, size_t) override { std::free(data); }
  void* create_stream(int) override { return new int; }
  void destroy_stream(void* stream) override { delete static_cast<int*>(stream); }
  void* create_event() override { return new size_t{0}; }
  void destroy_event(void* event) override { delete static_cast<size_t*>(event); }
  void record_event(void* event, void*) override { *static_cast<size_t*>(event) = queued_; }
  void wait_event(void* event, void*) override { run_up_to(*static_cast<size_t*>(event)); }
  void synchronize(void*) override { run_up_to(queued_); }
  void copy_from_host(void*, const void*, size_t, void*) override { fail("nothing is written"); }
  void copy_to_host(void*, const void*, size_t, void*) override { fail("nothing is waited for"); }
  void copy_to_host_async(void* target, const void* source, size_t bytes, void*) override {
    ++queued_;
    copies_.push_back([=] { std::memcpy(target, source, bytes); });
  }
  size_t left() const { return copies_.size(); }

 private:
  void run_up_to(size_t count) {
    for (; done_ < count; ++done_, copies_.pop_front()) copies_.front()();
  }

  std::deque<std::function<void()>> copies_;
  size_t queued_ = 0, done_ = 0;
};

struct LateContext {
  std::shared_ptr<LateCopies> runtime = std::make_shared<LateCopies>();
  RankContext ctx;

  LateContext() {
    ctx.device = kGpu;
    ctx.runtime = runtime;
    ctx.stream = Stream(runtime);
  }
};

// Memory of the device, all of one value.
struct Values {
  explicit Values(float value) : memory(64, value) {}
  Tensor tensor(int64_t begin = 0, int64_t end = 64) {
    return Tensor::wrap(memory.data(), {64}, DType::F32, kGpu).slice(0, begin, end);
  }
  void change() { memory.assign(memory.size(), -1); }
  std::vector<float> memory;
};

TEST(Snapshot, GroupsChangeOnceTheyAreCopied) {
  LateContext late;
  Values a(1), b(2), c(3), beside(4);
  Snapshot snapshot;
  for (int round = 0; round < 2; ++round) {
    a = Values(1), b = Values(2), c = Values(3), beside = Values(4);
    ASSERT_FALSE(snapshot.holds_back());
    // What is saved has another order than the update, and parts of its tensors alone.
    snapshot.take(
        late.ctx,
        std::vector<OwnChunk>{
            {"c", c.tensor()}, {"a", a.tensor(8, 32)}, {"beside", beside.tensor()}, {"b", b.tensor()}},
        std::vector<std::vector<Tensor>>{{a.tensor(), b.tensor()}, {c.tensor()}});
    ASSERT_TRUE(snapshot.holds_back());
    EXPECT_EQ(late.runtime->left(), 4U);
    snapshot.hold_back(late.ctx, 0);
    EXPECT_EQ(late.runtime->left(), 1U) << "the first group has waited for the second";
    a.change();
    b.change();
    snapshot.hold_back(late.ctx, 1);
    c.change();
    snapshot.hold_back(late.ctx);
    beside.change();
    EXPECT_FALSE(snapshot.holds_back());
    const std::span<const OwnChunk> copies = snapshot.copies();
    const float expected[] = {3, 1, 4, 2};
    for (size_t i = 0; i < 4; ++i)
      for (int64_t j = 0; j < copies[i].tensor.numel(); ++j)
        ASSERT_EQ(copies[i].tensor.data<float>()[j], expected[i]) << copies[i].key;
    snapshot.release();
  }
}

// A chunk that two groups change is copied before the first of them does.
TEST(Snapshot, ATensorOfTwoGroupsGoesWithTheFirst) {
  LateContext late;
  Values a(1), b(2);
  Snapshot snapshot;
  snapshot.take(late.ctx, std::vector<OwnChunk>{{"b", b.tensor()}, {"a", a.tensor()}},
                std::vector<std::vector<Tensor>>{{a.tensor(0, 16)}, {b.tensor()}, {a.tensor(16, 64)}});
  snapshot.hold_back(late.ctx, 0);
  EXPECT_EQ(late.runtime->left(), 1U);
  a.change();
  snapshot.hold_back(late.ctx, 1);
  b.change();
  EXPECT_EQ(snapshot.copies()[0].tensor.data<float>()[63], 2);
  EXPECT_EQ(snapshot.copies()[1].tensor.data<float>()[63], 1);
  snapshot.hold_back(late.ctx);
}

// Without an order, whoever changes anything waits for everything.
TEST(Snapshot, WithoutAnOrderAllIsWaitedFor) {
  LateContext late;
  Values a(1), b(2);
  Snapshot snapshot;
  snapshot.take(late.ctx, std::vector<OwnChunk>{{"a", a.tensor()}, {"b", b.tensor()}});
  snapshot.hold_back(late.ctx, 0);
  EXPECT_EQ(late.runtime->left(), 0U);
}

}  // namespace
}  // namespace megatron::testing
