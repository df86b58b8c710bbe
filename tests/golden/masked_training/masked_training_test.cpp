// A run that names .bin/.idx files sees Megatron-LM's own masked samples, and learns from them, to the bit,
// what the library does from the same micro-batches.
#include <cmath>
#include <fstream>

#include "golden/megatron_data/data_fixture.h"
#include "megatron/training/parity.h"
#include "megatron/training/run/run.h"
#include "megatron/training/setup/run_settings.h"

namespace megatron::testing {
namespace {

constexpr int64_t kBatch = 4, kIterations = 3;

constexpr std::string_view kRun =
    "--hidden-size 32 --num-attention-heads 4 --max-position-embeddings 64 --make-vocab-size-divisible-by 4 "
    "--micro-batch-size 2 --global-batch-size 4 --train-iters 50 --exit-interval 3 --lr 1e-3 "
    "--lr-decay-style constant --split 80,15,5 --seed 1234 --eval-interval 2 --eval-iters 1 --device cpu "
    "--ranks 2 --tensor-model-parallel-size 2 --tokenizer-type BertWordPieceLowerCase ";

std::vector<int64_t> integers(const SafetensorsFile& file, const std::string& name) {
  std::vector<int64_t> values;
  for (double value : to_doubles(file.tensor(name))) values.push_back(static_cast<int64_t>(value));
  return values;
}

// Megatron-LM's samples of the training split, in turn.
class GoldenSource final : public BatchSource {
 public:
  GoldenSource(const SafetensorsFile& file, std::string ids, std::map<std::string, std::string> extra)
      : ids_(integers(file, "train." + ids)),
        labels_(integers(file, "train.labels")),
        loss_mask_(integers(file, "train.loss_mask")),
        length_(file.tensor("train." + ids).size(1)) {
    for (const auto& [name, field] : extra) extra_[name] = file.tensor("train." + field);
  }
  int64_t length() const override { return length_; }

  std::vector<Batch> step(const StepRequest& request) const override {
    std::vector<Batch> batches;
    for (const Share& share : request.shares) {
      Batch& batch = batches.emplace_back();
      batch.rows = share.count;
      batch.first = share.first;
      const int64_t begin = request.consumed + share.first;
      for (int64_t i = begin * length_; i < (begin + share.count) * length_; ++i) {
        const auto at = static_cast<size_t>(i);
        batch.ids.push_back(ids_[at]);
        batch.labels.push_back(loss_mask_[at] ? labels_[at] : kIgnoredLabel);
      }
      for (const auto& [name, tensor] : extra_) batch.extra[name] = rows(tensor, begin, share.count);
    }
    return batches;
  }

 private:
  static Tensor rows(const Tensor& tensor, int64_t begin, int64_t count) {
    auto values = std::make_shared<std::vector<int64_t>>();
    for (double value : to_doubles(tensor.slice(0, begin, begin + count)))
      values->push_back(static_cast<int64_t>(value));
    const Shape shape = tensor.rank() == 1 ? Shape{count} : Shape{count, tensor.size(1)};
    return Tensor::wrap(values->data(), shape, DType::I64, kCpu, values);
  }

  std::vector<int64_t> ids_, labels_, loss_mask_;
  int64_t length_;
  std::map<std::string, Tensor> extra_;
};

// The losses of a run, and what it reports beside them.
struct Losses : Callback {
  void on(RunEvent event, RunView& view) override {
    if (event != RunEvent::step_end || !view.is_first_rank()) return;
    losses.push_back(view.report->loss);
    norms.push_back(view.report->grad_norm);
    terms.push_back(view.report->terms);
  }
  std::vector<double> losses, norms;
  std::vector<std::vector<LossTerm>> terms;
};

class MaskedTraining : public InGoldenFolder {
 protected:
  MaskedTraining() : InGoldenFolder("megatron_data_masked") {}

  void write_vocabulary(const Json& meta) {
    std::ofstream file(folder_ / "vocab.txt");
    for (const Json& piece : meta.at("tokenizer").at("inv_vocab").as_array())
      file << piece.as_string() << "\n";
  }

  void compare(const std::string& name, const std::string& flags, const std::string& ids,
               const std::map<std::string, std::string>& extra) {
    const Json meta = json(name);
    write_vocabulary(meta);
    RunSpec spec =
        run_spec(std::string(kRun) + flags +
                 fmt::format(" --data-path data/{} --data-cache-path {} --vocab-file {}",
                             meta.at("dataset").as_string(), folder_ / "cache", folder_ / "vocab.txt"));
    auto seen = std::make_shared<Losses>();
    spec.callbacks = {seen};
    spec.log = Log(LogLevel::error);
    spec.out = nullptr;
    const Config config = resolve_run(spec, {}).config;
    const SafetensorsFile expected = tensors(name);
    auto golden = std::make_shared<const GoldenSource>(expected, ids, extra);
    compare_batches(*run_data(config).train, *golden);

    run(spec);
    ASSERT_EQ(seen->losses.size(), static_cast<size_t>(kIterations));
    const ParityRun library{.sizes = {.world = 2, .tp = 2},
                            .dtype = DType::F32,
                            .lr = rate_schedule(config, config.train.train_iters).at(0),
                            .source = golden};
    const TrainedLayout trained =
        train_layout(config, library, std::vector<std::vector<int64_t>>(static_cast<size_t>(kIterations)));
    EXPECT_EQ(seen->losses, trained.losses);
    EXPECT_EQ(seen->norms, trained.grad_norms);
    for (size_t i = 0; i < seen->terms.size(); ++i) EXPECT_EQ(seen->terms[i], trained.reports[i].terms);
    for (double loss : seen->losses) EXPECT_NEAR(loss, std::log(300), 0.5);  // hardly trained
  }

 private:
  static void compare_batches(const BatchSource& ours, const BatchSource& theirs) {
    const Shares shares = Shares::even(kBatch, 2, 1);
    for (int64_t iteration = 0; iteration < 64 / kBatch; ++iteration) {
      const StepRequest request{iteration, iteration * kBatch, shares.of_replica[0]};
      const std::vector<Batch> a = ours.step(request), b = theirs.step(request);
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 0; i < a.size(); ++i) {
        EXPECT_EQ(a[i].ids, b[i].ids);
        EXPECT_EQ(a[i].labels, b[i].labels);
        for (const auto& [name, tensor] : b[i].extra)
          EXPECT_EQ(to_doubles(a[i].extra.at(name)), to_doubles(tensor)) << name;
      }
    }
  }

  TempDir folder_;
};

const std::map<std::string, std::string> kBertExtra = {{"token_types", "types"},
                                                       {"padding_mask", "padding_mask"}};

TEST_F(MaskedTraining, BertWithBinaryHead) {
  auto extra = kBertExtra;
  extra["is_random"] = "is_random";
  compare("bert_base", "--num-layers 2 --seq-length 64", "text", extra);
}

TEST_F(MaskedTraining, BertWithoutBinaryHead) {
  compare("bert_nohead", "--num-layers 2 --seq-length 64 --bert-no-binary-head", "text", kBertExtra);
}

TEST_F(MaskedTraining, T5) {
  compare("t5_base",
          "--encoder-num-layers 2 --decoder-num-layers 1 --encoder-seq-length 64 --decoder-seq-length 32 "
          "--vocab-extra-ids 20",
          "text_dec",
          {{"encoder_ids", "text_enc"}, {"encoder_mask", "enc_mask"}, {"decoder_mask", "dec_mask"}});
}

}  // namespace
}  // namespace megatron::testing
