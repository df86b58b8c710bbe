#include <gtest/gtest.h>

#include <sstream>

#include "megatron/base/json.h"
#include "unit/cli/run_command.h"

namespace megatron {
namespace {

std::vector<std::string> plan_of(std::vector<std::string> more) {
  std::vector<std::string> args = {"plan",
                                   "--num-layers",
                                   "8",
                                   "--hidden-size",
                                   "64",
                                   "--num-attention-heads",
                                   "4",
                                   "--seq-length",
                                   "32",
                                   "--max-position-embeddings",
                                   "32",
                                   "model.vocab_size=512",
                                   "--make-vocab-size-divisible-by",
                                   "8",
                                   "--micro-batch-size",
                                   "1",
                                   "--global-batch-size",
                                   "8"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

Json json_of(std::vector<std::string> more) {
  more.push_back("--json");
  const Outcome outcome = run_command(plan_of(std::move(more)));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return Json::parse(outcome.out);
}

const Json* traffic(const Json& rank, const char* group, const char* operation) {
  for (const Json& use : rank.at("communication").as_array())
    if (use.at("group").as_string() == group && use.at("operation").as_string() == operation) return &use;
  return nullptr;
}

// Latent attention and experts under every kind of parallelism; the numbers were made by hand.
TEST(Plan, CountedByHand) {
  std::vector<std::string> args = {"plan", "--json"};
  for (const char* text :
       {"--num-layers 4 --hidden-size 128 --num-attention-heads 8 --multi-latent-attention --q-lora-rank 48",
        "--kv-lora-rank 32 --qk-head-dim 16 --qk-pos-emb-head-dim 8 --v-head-dim 16 --seq-length 128",
        "--max-position-embeddings 128 --vocab-size 1000 --swiglu --ffn-hidden-size 256",
        "--disable-bias-linear --normalization RMSNorm --position-embedding-type rope --num-experts 8",
        "--moe-ffn-hidden-size 64 --moe-layer-freq [0,1,1,1] --moe-token-dispatcher-type alltoall",
        "--moe-router-topk 2 --moe-shared-expert-intermediate-size 64 --expert-model-parallel-size 4",
        "--expert-tensor-parallel-size 1 --tensor-model-parallel-size 2 --sequence-parallel",
        "--context-parallel-size 2 --pipeline-model-parallel-size 2",
        "--num-layers-per-virtual-pipeline-stage 1 --world-size 16 --micro-batch-size 1",
        "--global-batch-size 8 --bf16 --use-distributed-optimizer"}) {
    std::istringstream words(text);
    for (std::string word; words >> word;) args.push_back(word);
  }
  const Outcome outcome = run_command(args);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json plan = Json::parse(outcome.out);
  const Json &first = plan.at("ranks")[0], &last = plan.at("ranks")[1];
  // Attention of a rank: down 48·128 + 40·128, up (192·48 + 256·32) / 2, out 128·128 / 2, norms 48 + 32 +
  // 256.
  const int64_t attention = 6144 + 5120 + 4608 + 4096 + 8192 + 336, dense = (512 + 256) * 128 / 2,
                experts = 2 * (128 + 64) * 128, others = 8 * 128 + (128 + 64) * 128 / 2,
                words = 1024 / 2 * 128;
  EXPECT_EQ(first.at("parameters").as_int(), words + 2 * attention + dense + experts + others);
  EXPECT_EQ(last.at("parameters").as_int(), words + 128 + 2 * (attention + experts + others));
  EXPECT_EQ(plan.at("parameters").as_int(), 1074624);
  EXPECT_DOUBLE_EQ(plan.at("bubble").as_double(), 1.0 / (2 * 4 + 1));
  // In fp32 over dp · cp = 4 ranks; experts over 2; embeddings between stages by the owner of each quarter.
  EXPECT_NEAR(traffic(first, "dp-cp", "reduce_scatter")->at("bytes").as_double(),
              4.0 * static_cast<double>(first.at("parameters").as_int() - experts) * 3 / 4,
              3 * 4 * 128);  // each of three buckets is padded
  EXPECT_EQ(traffic(first, "edp", "reduce_scatter")->at("bytes").as_double(), 4.0 * experts / 2);
  EXPECT_EQ(traffic(first, "embd", "all_reduce")->at("bytes").as_double(), 4.0 * words / 4);
  // 4 micro-batches: there and back twice for a layer of experts, 32 tokens of 2 experts, of which 3/4 leave.
  EXPECT_EQ(traffic(first, "etp-ep", "all_to_all")->at("times").as_int(), 16);
  EXPECT_EQ(traffic(first, "etp-ep", "all_to_all")->at("bytes").as_double(), 16.0 * 32 * 2 * 128 * 2 * 3 / 4);
  // Two chunks forward, one backward, 32 tokens each.
  EXPECT_EQ(traffic(first, "pp", "send")->at("bytes").as_double(), 12.0 * 32 * 128 * 2);
}

TEST(Plan, OneRank) {
  const Json plan = json_of({});
  ASSERT_EQ(plan.at("ranks").as_array().size(), 1u);
  const Json& rank = plan.at("ranks")[0];
  EXPECT_EQ(rank.at("parameters").as_int(), plan.at("parameters").as_int());
  EXPECT_EQ(rank.at("communication").as_array().size(), 0u);
  // Gradients lie in buckets, whose ends are padded.
  EXPECT_GE(rank.at("memory_bytes").at("grad").as_int(), rank.at("memory_bytes").at("param").as_int());
  EXPECT_LE(rank.at("memory_bytes").at("grad").as_double(),
            1.1 * rank.at("memory_bytes").at("param").as_double());
  EXPECT_NEAR(static_cast<double>(rank.at("memory_bytes").at("optim").as_int()),
              2.0 * static_cast<double>(rank.at("memory_bytes").at("param").as_int()), 4096);
  EXPECT_EQ(plan.at("bubble").as_double(), 0);
}

// 8 micro-batches of 32 tokens of 64 fp32 values pass each boundary, gradients back.
TEST(Plan, PipelineMessagesAndBubble) {
  const Json plan = json_of({"--pipeline-model-parallel-size", "4"});
  ASSERT_EQ(plan.at("ranks").as_array().size(), 4u);
  EXPECT_DOUBLE_EQ(plan.at("bubble").as_double(), 3.0 / (8 + 3));
  const double message = 8.0 * 32 * 64 * 4;
  for (int r = 0; r < 4; ++r) {
    const Json& rank = plan.at("ranks")[static_cast<size_t>(r)];
    const Json* sent = traffic(rank, "pp", "send");
    ASSERT_NE(sent, nullptr);
    EXPECT_EQ(sent->at("bytes").as_double(), (r == 0 || r == 3 ? 1 : 2) * message);
  }
  EXPECT_EQ(plan.at("ranks")[0].at("holds").as_string(), "embedding layers 0-1");
  EXPECT_EQ(plan.at("ranks")[3].at("holds").as_string(), "layers 6-7 loss");
  const Json zero = json_of({"--pipeline-model-parallel-size", "4", "--pipeline-schedule", "zb-h1"});
  EXPECT_LT(zero.at("bubble").as_double(), plan.at("bubble").as_double());
}

TEST(Plan, TensorParallelHalvesMatricesAndMovesActivations) {
  const Json one = json_of({}), two = json_of({"--tensor-model-parallel-size", "2"});
  const Json& rank = two.at("ranks")[0];
  EXPECT_LT(rank.at("parameters").as_int(), one.at("parameters").as_int() * 6 / 10);
  const Json* sums = traffic(rank, "tp", "all_reduce");
  ASSERT_NE(sums, nullptr);
  EXPECT_GT(sums->at("bytes").as_double(), 8.0 * 8 * 4 * 32 * 64 * 4);  // 4 a layer and micro-batch, at least
}

TEST(Plan, RecomputeLowersActivations) {
  const auto activations = [](const Json& plan) {
    return plan.at("ranks")[0].at("memory_bytes").at("act").as_int();
  };
  EXPECT_LT(activations(json_of({"--recompute-granularity", "full"})), activations(json_of({})) / 2);
}

TEST(Plan, TimelineForPeople) {
  const Outcome outcome = run_command(plan_of({"-pp", "2", "--global-batch-size", "4"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("rank 0  |F0 F1 .  .  B0--- F2 B1--- F3 B2--- .  B3---\n"
                             "rank 1  |.  F0 B0--- F1 B1--- F2 B2--- F3 B3--- .  .\n"),
            std::string::npos)
      << outcome.out;
}

TEST(Plan, RefusesWhatDoesNotFit) {
  const Outcome outcome = run_command(plan_of({"--memory-gib", "0.001"}));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("--tensor-model-parallel-size"), std::string::npos) << outcome.err;
  EXPECT_EQ(run_command(plan_of({"--memory-gib", "4"})).code, 0);
  EXPECT_EQ(run_command(plan_of({"--memory-gib", "much"})).code, 2);
  EXPECT_EQ(run_command(plan_of({"-tp", "3"})).code, 1);
  EXPECT_EQ(run_command(plan_of({"-pp", "2", "--width", "-5"})).code, 2);
}

// Groups that are split off while a rank is set up, of keys that several ranks share and of sharded copies.
TEST(Plan, GroupsBeyondTheGrid) {
  const Json keys = json_of({"-tp", "4", "--group-query-attention", "--num-query-groups", "2"});
  const Json* summed = traffic(keys.at("ranks")[0], "tp-keys", "all_gather");
  ASSERT_NE(summed, nullptr);
  EXPECT_EQ(summed->at("ranks").as_int(), 2);
  const Json copies = json_of(
      {"--world-size", "4", "--use-distributed-optimizer", "--num-distributed-optimizer-instances", "2"});
  const Json* between = traffic(copies.at("ranks")[0], "dp-cp-inter", "all_reduce");
  ASSERT_NE(between, nullptr);
  EXPECT_EQ(between->at("ranks").as_int(), 2);
}

// MTP layers stand where the layout puts them; what they made travels on beside the hidden states.
TEST(Plan, MtpLayersInAStageOfTheirOwn) {
  const Json plan = json_of({"--mtp-num-layers", "2", "--position-embedding-type", "rope", "-pp", "4",
                             "--pipeline-model-parallel-layout", "Et*4|t*4|mm|L"});
  EXPECT_EQ(plan.at("ranks")[2].at("holds").as_string(), "2 MTP layers");
  EXPECT_EQ(plan.at("ranks")[3].at("holds").as_string(), "loss");
  const double message = 8.0 * 32 * 64 * 4;
  for (const auto& [rank, messages] : {std::pair{0, 1}, {1, 2}, {2, 1 + 3}, {3, 3}})
    EXPECT_EQ(traffic(plan.at("ranks")[static_cast<size_t>(rank)], "pp", "send")->at("bytes").as_double(),
              messages * message)
        << rank;
  for (int rank : {0, 2, 3}) {
    const Json* tied = traffic(plan.at("ranks")[static_cast<size_t>(rank)], "embd", "all_reduce");
    ASSERT_NE(tied, nullptr) << rank;
    EXPECT_EQ(tied->at("ranks").as_int(), 3);
  }
  EXPECT_EQ(traffic(plan.at("ranks")[1], "embd", "all_reduce"), nullptr);
}

// Replicas that lost ranks: who is where, in words and a picture.
TEST(Plan, LostRanks) {
  const std::vector<std::string> lost = {"-tp",
                                         "4",
                                         "--world-size",
                                         "8",
                                         "--non-active-ranks",
                                         "1:2",
                                         "--attention-dropout",
                                         "0",
                                         "--use-distributed-optimizer"};
  const Outcome outcome = run_command(plan_of(lost));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const char* text : {"replica 0: tp 4   ranks 0 1 2 | 3\n", "replica 1: tp 3   ranks 4 5 7\n",
                           "idle: 6\n", "gradients of replicas meet at 3 positions", "get parameters back",
                           "micro-batches of a step, by the speed of each replica: 5 3\n"})
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << "\n" << outcome.out;
  const Json layout = json_of(lost).at("layout");
  EXPECT_EQ(layout.at("replicas")[1].as_int(), 3);
  EXPECT_EQ(layout.at("sync_positions").as_int(), 3);
  EXPECT_EQ(layout.at("idle_ranks")[0].as_int(), 6);
  EXPECT_EQ(layout.at("replica_micro_batches")[0].as_int(), 5);
  // A map of one stage of one replica makes all its stages smaller.
  const Outcome stage = run_command(plan_of({"-tp", "2", "-pp", "2", "--world-size", "8",
                                             "--non-active-ranks", "0.0.1:0", "--attention-dropout", "0"}));
  ASSERT_EQ(stage.code, 0) << stage.err;
  EXPECT_NE(stage.out.find("replica 0, stage 0: tp 1   ranks 0\nreplica 0, stage 1: tp 1   ranks 5\n"
                           "replica 1, stage 0: tp 2   ranks 2 | 3\nreplica 1, stage 1: tp 2   ranks 6 | 7\n"
                           "idle: 1 4\n"),
            std::string::npos)
      << stage.out;
}

TEST(Parity, OfLayoutsThatLostRanks) {
  const Outcome outcome = run_command(
      {"parity", "one", "tp4,sp,dp2,lost1:2", "tp2,pp2,dp2,zero1,lost0.0.1:0", "tp4,dp2,lost0:0+3"});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
}

TEST(Parity, LayoutsAreAlike) {
  const Outcome outcome = run_command({"parity", "one", "tp2,sp", "pp2,zb-v,vpp2", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  const Json document = Json::parse(outcome.out);
  EXPECT_TRUE(document.at("equal").as_bool());
  ASSERT_EQ(document.at("comparisons").as_array().size(), 2u);
  EXPECT_LT(document.at("comparisons")[1].at("worst").as_double(), 1e-9);
  EXPECT_EQ(run_command({"parity", "dp2", "tp2,dp2,mb2", "--dtype", "fp32"}).code, 0);
  EXPECT_EQ(run_command(
                {"parity", "one", "dp2,zero3",
                 "cp4,model.cp_comm_type=a2a+p2p,model.hierarchical_context_parallel_sizes=[2,2],dp2,zero1"})
                .code,
            0);
}

TEST(Parity, NamesTheFirstDifference) {
  const Outcome seed = run_command({"parity", "one", "pp2,rng.seed=5"});
  EXPECT_EQ(seed.code, 3);
  EXPECT_NE(seed.out.find("differ first at step 1: loss"), std::string::npos) << seed.out;
  const Outcome decay = run_command({"parity", "one", "one,optimizer.weight_decay=0.5"});
  EXPECT_EQ(decay.code, 3);
  EXPECT_NE(decay.out.find("differ first at step 1: parameter of embedding.word_embeddings.weight"),
            std::string::npos)
      << decay.out;
}

TEST(Parity, Refusals) {
  EXPECT_EQ(run_command({"parity", "one"}).code, 2);
  EXPECT_EQ(run_command({"parity", "one", "tp"}).code, 2);
  EXPECT_EQ(run_command({"parity", "one", "xp2"}).code, 2);
  EXPECT_EQ(run_command({"parity", "one", "tp3"}).code, 1);
  EXPECT_EQ(run_command({"parity", "one", "tp2", "--dtype", "int8"}).code, 2);
  for (const char* other :
       {"tp2,train.global_batch_size=16", "tp2,model.seq_length=8", "tp2,model.vocab_size=32"}) {
    const Outcome outcome = run_command({"parity", "one", other});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("behind the layouts, for all of them"), std::string::npos) << outcome.err;
  }
}

}  // namespace
}  // namespace megatron
