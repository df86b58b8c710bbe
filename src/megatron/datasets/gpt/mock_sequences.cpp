#include "megatron/datasets/gpt/mock_sequences.h"

#include "megatron/base/error.h"
#include "megatron/datasets/random/pcg64.h"

namespace megatron {

MockSequences::MockSequences(int64_t vocab_size, int64_t eod)
    : vocab_size_(vocab_size), eod_(eod), lengths_(100000) {
  require(vocab_size > 0, "mock data: vocabulary of {}, expected at least 1", vocab_size);
  Pcg64 random(0);
  for (int32_t& length : lengths_) length = 1 + static_cast<int32_t>(random.bounded(4094));
}

void MockSequences::read(int64_t sequence, int64_t offset, std::span<int64_t> out) const {
  require(sequence >= 0 && sequence < static_cast<int64_t>(lengths_.size()), "mock data: sequence {} of {}",
          sequence, lengths_.size());
  const int64_t length = lengths_[static_cast<size_t>(sequence)];
  require(offset >= 0 && offset + static_cast<int64_t>(out.size()) <= length,
          "mock data: tokens {} to {} of a sequence of {}", offset, offset + static_cast<int64_t>(out.size()),
          length);
  for (int64_t& token : out) {
    ++offset;
    token = offset == length ? eod_ : offset % vocab_size_;
  }
}

}  // namespace megatron
