#pragma once

#include <filesystem>

#include "megatron/datasets/gpt/gpt_dataset.h"
#include "megatron/datasets/gpt/gpt_sample.h"
#include "megatron/datasets/gpt/split.h"
#include "megatron/datasets/index/index_array.h"
#include "megatron/datasets/indexed/indexed_dataset.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace megatron::testing {

// The archives name datasets relative to their roots, and those names are hashed into names of caches: tests
// work there.
class InGoldenFolder : public ::testing::Test {
 protected:
  explicit InGoldenFolder(const std::string& subject)
      : subject_(subject), before_(std::filesystem::current_path()) {
    std::filesystem::current_path(std::filesystem::path(MEGATRON_GOLDEN_DIR) / subject);
  }
  ~InGoldenFolder() override { std::filesystem::current_path(before_); }

  Json json(const std::string& file) const { return golden_json(subject_, "expected/" + file); }
  SafetensorsFile tensors(const std::string& file) const {
    return golden_tensors(subject_, "expected/" + file);
  }

 private:
  std::string subject_;
  std::filesystem::path before_;
};

// The names of the cases of a kind: files of `expected` that begin with `kind`, without their endings.
inline std::vector<std::string> golden_cases(const std::string& subject, const std::string& kind) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(MEGATRON_GOLDEN_DIR) /
                                                               subject / "expected")) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() == ".json" && name.starts_with(kind)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

template <class Values>
std::vector<double> doubles(const Values& values) {
  return {values.begin(), values.end()};
}

inline std::vector<double> doubles_of(const IndexArray& array) {
  std::vector<double> values;
  for (int64_t i = 0; i < array.size(); ++i) values.push_back(static_cast<double>(array[i]));
  return values;
}

// What a dataset of Megatron-LM was identified by.
inline DatasetIdentity identity_of(const Json& meta, Json tokenizer) {
  DatasetIdentity identity;
  identity.seed = static_cast<uint32_t>(meta.at("random_seed").as_int());
  identity.seq_length = meta.at("seq_length").as_int();
  identity.split = meta.at("split").as_string();
  identity.matrix = split_matrix(parse_split(*identity.split));
  identity.tokenizer = std::move(tokenizer);
  return identity;
}

inline ::testing::AssertionResult equals(const SafetensorsFile& file, const std::string& name,
                                         const std::vector<double>& actual) {
  if (!file.contains(name)) return ::testing::AssertionFailure() << file.path() << " has no " << name;
  const Tensor expected = file.tensor(name);
  return is_close(name, expected.shape(), actual, to_doubles(expected), kExact);
}

// Megatron-LM keeps the loss mask of the first sample that it is asked for, where no option makes masks
// differ, and writes that sample's padding into what it kept: the others lack those places, too.
class KeptMask {
 public:
  void keep(const GptSampleOptions& options, GptSample& sample) {
    if (options.reset_position_ids || options.reset_attention_mask || options.eod_mask_loss) return;
    if (first_.empty()) first_ = sample.loss_mask;
    for (size_t i = 0; i < first_.size(); ++i) sample.loss_mask[i] *= first_[i];
  }

 private:
  std::vector<float> first_;
};

inline std::array<std::optional<int64_t>, 3> golden_sizes(const Json& sizes) {
  std::array<std::optional<int64_t>, 3> result;
  for (size_t i = 0; i < 3; ++i)
    if (!sizes[i].is_null()) result[i] = sizes[i].as_int();
  return result;
}

inline std::optional<int64_t> optional_int(const Json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.as_int());
}

}  // namespace megatron::testing
