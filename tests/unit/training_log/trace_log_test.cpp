#include <gtest/gtest.h>

#include <map>

#include "megatron/autograd/tracer.h"
#include "megatron/base/json.h"
#include "megatron/training/run/run.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

struct Seen {
  std::map<std::string, int> phases, names;
  std::map<int64_t, int> spans_of_rank;
  std::map<std::string, int> lanes;
  std::map<int64_t, double> sent, received;
};

// A run of four ranks, two stages of two, and what its trace holds.
Seen trace_of(const std::string& flags) {
  const testing::TempDir dir;
  RunSpec spec = run_spec(
      "--num-layers 2 --hidden-size 16 --num-attention-heads 2 --seq-length 8 --max-position-embeddings 8 "
      "--vocab-size 32 --make-vocab-size-divisible-by 1 --micro-batch-size 1 --global-batch-size 4 --lr 1e-3 "
      "--mock-data --device cpu --ranks 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 "
      "--train-iters 3 --eval-iters 0 --profile --profile-step-start 1 --tensorboard-dir " +
      dir.path() + " " + flags);
  spec.log = Log(LogLevel::error);
  spec.out = nullptr;
  run(spec);
  Seen seen;
  const Json trace = Json::read(dir / "trace.json");
  for (const Json& event : trace.at("traceEvents").as_array()) {
    const std::string phase = event.at("ph").as_string();
    ++seen.phases[phase];
    // A send that has been received by then is not waited for, so that the number of waits varies.
    if (phase == "X" && event.at("name").as_string() != kWaitRange) {
      ++seen.names[event.at("name").as_string()];
      ++seen.spans_of_rank[event.at("pid").as_int()];
      EXPECT_GE(event.at("dur").as_double(), 0);
    }
    if (phase == "M" && event.at("name").as_string() == "thread_name")
      ++seen.lanes[event.at("args").at("name").as_string()];
    if (phase == "s") seen.sent[event.at("id").as_int()] = event.at("ts").as_double();
    if (phase == "f") seen.received[event.at("id").as_int()] = event.at("ts").as_double();
  }
  return seen;
}

TEST(TraceLog, HoldsTheProfiledStepOfAllRanks) {
  const Seen seen = trace_of("--profile-step-end 2");
  EXPECT_EQ(seen.spans_of_rank.size(), 4u);
  EXPECT_EQ(seen.names.at("read batches"), 4);  // one step
  EXPECT_EQ(seen.names.at("forward"), 4 * 4);   // four micro-batches
  EXPECT_GT(seen.names.at("update"), 0);
  EXPECT_EQ(seen.lanes,
            (std::map<std::string, int>{{"communication", 4}, {"compute", 4}, {"data", 4}, {"pipeline", 4}}));
  // Activations and gradients of four micro-batches on two pairs of stages.
  EXPECT_EQ(seen.sent.size(), 2u * 4 * 2);
  for (const auto& [id, time] : seen.sent) EXPECT_GE(seen.received.at(id), time);
}

TEST(TraceLog, KeepsToRanksAndTheEndOfTheRun) {
  const Seen seen = trace_of("--profile-step-end 9 --profile-ranks 1 3");
  EXPECT_EQ(seen.spans_of_rank.size(), 2u);
  EXPECT_EQ(seen.names.at("read batches"), 2 * 2);  // the two steps that there were
}

// Both listen to the same steps, of which there are two: each must leave the other as it found it.
TEST(TraceLog, StandsBesideThePageOfMemory) {
  const Seen alone = trace_of("--profile-step-end 3"),
             both = trace_of("--profile-step-end 3 --record-memory-history");
  for (const auto& [name, count] : alone.names) {
    const auto found = both.names.find(name);
    EXPECT_EQ(count, found == both.names.end() ? 0 : found->second) << name;
  }
  EXPECT_EQ(alone.names.size(), both.names.size());
  EXPECT_EQ(alone.spans_of_rank, both.spans_of_rank);
}

// A page of the last profiled step: curves of every rank, what grew, and the tensors that stay.
TEST(MemoryLog, WritesWhatAStepHeld) {
  const testing::TempDir dir;
  RunSpec spec = run_spec(
      "--num-layers 2 --hidden-size 16 --num-attention-heads 2 --seq-length 8 --max-position-embeddings 8 "
      "--vocab-size 32 --make-vocab-size-divisible-by 1 --micro-batch-size 1 --global-batch-size 4 --lr 1e-3 "
      "--mock-data --device cpu --ranks 2 --tensor-model-parallel-size 2 --train-iters 2 --eval-iters 0 "
      "--record-memory-history --profile-step-start 1 --profile-step-end 2 --tensorboard-dir " +
      dir.path());
  spec.log = Log(LogLevel::error);
  spec.out = nullptr;
  run(spec);
  const std::string page = testing::read_text(dir / "snapshot.html");
  const std::string begin = "id=\"data\">";
  const size_t from = page.find(begin) + begin.size();
  const std::string data = page.substr(from, page.find("</script>", from) - from);
  for (const char* word : {"rank 0", "rank 1", "\"total\"", "\"param\"", "\"act\"", "peak"})
    EXPECT_NE(data.find(word), std::string::npos) << word;
  EXPECT_NE(page.find("decoder.layers.0.mlp.linear_fc1.weight"), std::string::npos);
  EXPECT_NE(page.find("optimizer"), std::string::npos);
}

}  // namespace
}  // namespace megatron
