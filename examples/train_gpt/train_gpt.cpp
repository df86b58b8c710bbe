// Trains a small GPT through the library: two tensor-parallel ranks as threads of this process.
//
//   train_gpt DIR     learns to count: each token is the one before it plus a step that it must work out.
//                     Saves to DIR; started again, it goes on from there and finishes at iteration 200.
#include "megatron/base/error.h"
#include "megatron/training/run/run.h"

using namespace megatron;

// Sequences that count up modulo 64 by steps of 1 to 4.
std::shared_ptr<const BatchSource> counting(uint64_t seed, int64_t length) {
  return token_source(length, -1, [=](int64_t, int64_t consumed, int64_t index) {
    const auto random = Philox::at({seed, 0}, static_cast<uint64_t>(consumed + index));
    std::vector<int64_t> tokens = {random.word[0] % 64};
    while (std::ssize(tokens) <= length) tokens.push_back((tokens.back() + 1 + random.word[1] % 4) % 64);
    return tokens;
  });
}

int main(int argc, char** argv) try {
  const std::string folder = argc > 1 ? argv[1] : "train_gpt-checkpoints";
  RunSpec spec = run_spec(
      fmt::format("--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 16 "
                  "--max-position-embeddings 16 --vocab-size 64 --make-vocab-size-divisible-by 1 "
                  "--micro-batch-size 8 --global-batch-size 16 --train-iters 200 --lr 3e-3 --ranks 2 "
                  "--tensor-model-parallel-size 2 --sequence-parallel --device cpu --save-interval 100 "
                  "--eval-interval 100 --eval-iters 4 --log-interval 50 --save {0} --load {0}",
                  folder));
  spec.data = [](const Config& config) {
    const int64_t length = config.model.seq_length;
    return RunData{.train = counting(1, length), .validation = {{"validation", counting(2, length)}}};
  };
  return run(spec).reason == RunEnd::Reason::finished ? 0 : 1;
} catch (const Error& error) {
  fmt::print(stderr, "train_gpt: {}\n", error.what());
  return error.exit_code();
}
