// Micro-batches that are copied on a stream of their own, on a device that lets streams run in any order that
// their events allow.
#include "megatron/parallel/upload_ahead.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <deque>

namespace megatron::testing {
namespace {

// Host memory as a device: what is put on a stream runs when the test says so.
class QueuedRuntime final : public DeviceRuntime {
 public:
  struct Point {
    bool recorded = false;  // its place in a stream was reached
  };
  struct Work {
    std::function<void()> run;
    std::shared_ptr<Point> until;  // the stream stops here before it is recorded
  };
  using Queue = std::deque<Work>;

  Device device() const override { return kCpu; }
  void* acquire_memory(size_t bytes) override { return std::calloc(bytes, 1); }
  void release_memory(void* data, size_t) override { std::free(data); }
  void* create_stream(int) override { return new Queue; }
  void destroy_stream(void* stream) override { delete static_cast<Queue*>(stream); }
  void* create_event() override { return new std::shared_ptr<Point>; }
  void destroy_event(void* event) override { delete &point(event); }
  void record_event(void* event, void* stream) override {
    point(event) = std::make_shared<Point>();
    put(stream, [reached = point(event)] { reached->recorded = true; });
  }
  void wait_event(void* event, void* stream) override {
    static_cast<Queue*>(stream)->push_back({[] {}, point(event)});
  }
  void copy_from_host(void* target, const void* source, size_t bytes, void* stream) override {
    const auto* from = static_cast<const char*>(source);
    put(stream,
        [target, bytes, staged = std::string(from, bytes)] { std::memcpy(target, staged.data(), bytes); });
  }
  void copy_to_host(void*, const void*, size_t, void*) override { fail("nothing is read back"); }

  void put(void* stream, std::function<void()> run) {
    static_cast<Queue*>(stream)->push_back({std::move(run), nullptr});
  }
  // Runs each stream as far as it can, `first` before `second`, until both are empty.
  static void run(const Stream& first, const Stream& second) {
    auto* a = static_cast<Queue*>(first.native());
    auto* b = static_cast<Queue*>(second.native());
    while (!a->empty() || !b->empty()) {
      Queue* next = can_run(*a) ? a : b;
      ASSERT_TRUE(can_run(*next)) << "the streams wait for each other";
      const Work work = std::move(next->front());
      next->pop_front();
      work.run();
    }
  }

 private:
  static std::shared_ptr<Point>& point(void* event) { return *static_cast<std::shared_ptr<Point>*>(event); }
  static bool can_run(const Queue& queue) {
    return !queue.empty() && (!queue.front().until || queue.front().until->recorded);
  }
};

struct QueuedContext {
  std::shared_ptr<QueuedRuntime> runtime = std::make_shared<QueuedRuntime>();
  RankContext ctx;
  Stream copies{runtime};

  QueuedContext() {
    ctx.runtime = runtime;
    ctx.allocator = std::make_shared<Allocator>(runtime);
    ctx.stream = Stream(runtime);
  }
};

constexpr int kBatches = 6;
constexpr int64_t kTokens = 64;

std::vector<Batch> numbered_batches() {
  std::vector<Batch> batches(kBatches);
  for (int i = 0; i < kBatches; ++i) {
    batches[static_cast<size_t>(i)].ids.assign(kTokens, 100 + i);
    batches[static_cast<size_t>(i)].labels.assign(kTokens, 200 + i);
    batches[static_cast<size_t>(i)].weights.assign(kTokens, static_cast<float>(1 + i));
  }
  return batches;
}

MicroBatch send(RankContext& ctx, const Batch& batch, const Stream& copies) {
  return to_device(ctx, batch, {}, {}, {.label = 0.5}, DType::F32, copies);
}

// What the rank's stream reads of a micro-batch, late, when the host has let go of it.
void read_late(QueuedContext& q, const MicroBatch& micro, int index, int& right) {
  q.runtime->put(q.ctx.stream.native(),
                 [ids = micro.ids.data<int64_t>(), labels = micro.labels.data<int64_t>(),
                  weights = micro.weights.data<float>(), index, &right] {
                   for (int64_t i = 0; i < kTokens; ++i)
                     if (ids[i] != 100 + index || labels[i] != 200 + index ||
                         weights[i] != 0.5F * static_cast<float>(1 + index))
                       return;
                   ++right;
                 });
}

TEST(UploadAhead, EveryOrderOfTheStreamsReadsTheSame) {
  for (const bool copies_first : {false, true}) {
    QueuedContext q;
    const std::vector<Batch> batches = numbered_batches();
    int right = 0;
    {
      UploadAhead uploads(q.ctx, q.copies, kBatches, [&](int microbatch, const Stream& copies) {
        return send(q.ctx, batches[static_cast<size_t>(microbatch)], copies);
      });
      for (int i = 0; i < kBatches; ++i) read_late(q, uploads.take(i), i, right);
    }
    if (copies_first)
      QueuedRuntime::run(q.copies, q.ctx.stream);
    else
      QueuedRuntime::run(q.ctx.stream, q.copies);
    EXPECT_EQ(right, kBatches) << copies_first;
    // Memory of two micro-batches, three tensors each, is used in turn: what is sent overwrites what was
    // read.
    EXPECT_EQ(q.ctx.allocator->statistics().device_allocations, 6u);
  }
}

TEST(UploadAhead, TheNextOneArrivesWhileThisOneIsComputed) {
  QueuedContext q;
  const std::vector<Batch> batches = numbered_batches();
  UploadAhead uploads(q.ctx, q.copies, kBatches, [&](int microbatch, const Stream& copies) {
    return send(q.ctx, batches[static_cast<size_t>(microbatch)], copies);
  });
  MicroBatch first = uploads.take(0);
  int64_t seen = 0;
  const auto* ids = first.ids.data<int64_t>();
  q.runtime->put(q.ctx.stream.native(), [&] { seen = ids[0]; });  // stands for the computation
  // All copies are done before it: none of them waits for it.
  auto* copies = static_cast<QueuedRuntime::Queue*>(q.copies.native());
  bool all_copied = false;
  q.runtime->put(q.copies.native(), [&] { all_copied = seen == 0; });
  QueuedRuntime::run(q.copies, q.ctx.stream);
  EXPECT_TRUE(copies->empty());
  EXPECT_TRUE(all_copied);
  EXPECT_EQ(seen, 100);
}

TEST(UploadAhead, AnyOrderOfMicroBatchesIsGiven) {
  QueuedContext q;
  const std::vector<Batch> batches = numbered_batches();
  int right = 0;
  {
    UploadAhead uploads(q.ctx, q.copies, kBatches, [&](int microbatch, const Stream& copies) {
      return send(q.ctx, batches[static_cast<size_t>(microbatch)], copies);
    });
    for (int i : {2, 2, 5, 0, 1}) read_late(q, uploads.take(i), i, right);
  }  // micro-batch 2 was sent and is not taken
  const std::vector<int64_t> other(kTokens, 7);
  const Tensor later = q.ctx.from_vector(other, {kTokens});  // may get its memory
  QueuedRuntime::run(q.ctx.stream, q.copies);
  EXPECT_EQ(std::vector(later.data<int64_t>(), later.data<int64_t>() + kTokens), other);
  EXPECT_EQ(right, 5);
}

}  // namespace
}  // namespace megatron::testing
