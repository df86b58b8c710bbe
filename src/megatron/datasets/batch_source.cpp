#include "megatron/datasets/batch_source.h"

namespace megatron {
namespace {

class TokenSource final : public BatchSource {
 public:
  TokenSource(int64_t length, int64_t samples, TokenRow row)
      : length_(length), samples_(samples), row_(std::move(row)) {}
  int64_t length() const override { return length_; }
  int64_t samples() const override { return samples_; }

  std::vector<Batch> step(const StepRequest& request) const override {
    std::vector<Batch> batches;
    for (const Share& share : request.shares) {
      std::vector<int64_t> tokens;
      for (int64_t i = share.first; i < share.first + share.count; ++i) {
        const std::vector<int64_t> row = row_(request.iteration, request.consumed, i);
        tokens.insert(tokens.end(), row.begin(), row.end());
      }
      batches.push_back(batches_of_tokens(tokens, share.count, length_, {}, {}, share.first)[0]);
    }
    return batches;
  }

 private:
  int64_t length_, samples_;
  TokenRow row_;
};

}  // namespace

std::shared_ptr<const BatchSource> token_source(int64_t length, int64_t samples, TokenRow row) {
  return std::make_shared<const TokenSource>(length, samples, std::move(row));
}

}  // namespace megatron
