#include "megatron/cli/commands/data_command.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>

#include "megatron/base/json.h"
#include "megatron/base/refuse.h"
#include "megatron/checkpoint/safetensors.h"
#include "megatron/cli/flags.h"
#include "megatron/datasets/gpt/blended_dataset.h"
#include "megatron/datasets/gpt/mock_sequences.h"
#include "megatron/datasets/indexed/indexed_dataset.h"
#include "megatron/datasets/masked/bert_dataset.h"
#include "megatron/datasets/masked/t5_dataset.h"
#include "megatron/datasets/masked/word_pieces.h"

namespace megatron {
namespace {

constexpr std::string_view kCommand = "data";

struct DataSettings {
  std::string action;
  std::vector<std::string> words;
  // inspect
  bool multimodal = false, json = false;
  // samples
  std::array<std::vector<std::string>, 4> paths;  // all splits, then each
  std::string args_path, per_split_args_path, split = "969,30,1", samples, kind = "gpt", out, cache_path,
                                              vocab_file;
  bool mock = false;
  int64_t seq_length = 0, decoder_length = 128, seed = 1234, count = 64, vocab_size = 0, extra_ids = 0;
  std::optional<int64_t> eod, pad;
  double surplus = 0.005, mask_prob = 0.15, short_prob = 0.1;
  bool ambiguous_pad = false, no_attention_mask = false, no_binary_head = false, no_mmap = false;
  bool no_extra_token = false, keep_partial = false;
  GptSampleOptions sample;
};

Flag optional_flag(std::string_view name, std::string_view help, std::optional<int64_t>& target) {
  return {name, "N", help, [name, &target](std::string_view command, const std::string& text) {
            target = parse_int(command, name, text);
          }};
}

Flag number_flag(std::string_view name, std::string_view help, double& target) {
  return {
      name, "X", help, [name, &target](std::string_view command, const std::string& text) {
        char* end = nullptr;
        target = std::strtod(text.c_str(), &end);
        if (text.empty() || *end != '\0' || !(target >= 0))
          throw UsageError(fmt::format("{}: {} needs a number of at least 0, not '{}'", command, name, text));
      }};
}

std::vector<Flag> data_flags(DataSettings& s) {
  return {list_flag("--data-path", "LIST", "prefixes, or weights and prefixes in turn", "", s.paths[0]),
          list_flag("--train-data-path", "LIST", "the same, for training only", "", s.paths[1]),
          list_flag("--valid-data-path", "LIST", "the same, for validation only", "", s.paths[2]),
          list_flag("--test-data-path", "LIST", "the same, for testing only", "", s.paths[3]),
          text_flag("--data-args-path", "FILE", "file with the words of --data-path", s.args_path),
          text_flag("--per-split-data-args-path", "FILE", "JSON file with the words of each split",
                    s.per_split_args_path),
          switch_flag("--mock-data", "Megatron's mock sequences", s.mock),
          text_flag("--split", "A,B,C", "shares of train, valid, test [969,30,1]", s.split),
          int_flag("--seq-length", "tokens of a sample", s.seq_length, 1),
          int_flag("--seed", "seed of the order [1234]", s.seed),
          text_flag("--samples", "A,B,C", "samples of each split; all: one epoch", s.samples),
          optional_flag("--eod-id", "end-of-document token", s.eod),
          optional_flag("--pad-id", "padding token [none]", s.pad),
          int_flag("--count", "samples written of each split [64]", s.count),
          text_flag("--out", "FILE", "safetensors file to write", s.out),
          text_flag("--kind", "KIND", "gpt, bert or t5 [gpt]", s.kind),
          switch_flag("--reset-position-ids", "positions start again after --eod-id",
                      s.sample.reset_position_ids),
          switch_flag("--reset-attention-mask", "attention within documents; writes the masks",
                      s.sample.reset_attention_mask),
          switch_flag("--eod-mask-loss", "end-of-document tokens have no loss", s.sample.eod_mask_loss),
          switch_flag("--no-create-attention-mask-in-dataloader", "write no attention masks",
                      s.no_attention_mask),
          switch_flag("--inter-document-masking", "write cu_seqlens of documents",
                      s.sample.inter_document_masking),
          switch_flag("--no-add-extra-token", "samples hold no token for the last label", s.no_extra_token),
          switch_flag("--keep-last-partial-validation", "keep the validation rest", s.keep_partial),
          switch_flag("--allow-ambiguous-pad-tokens", "keep a pad id that is also --eod-id", s.ambiguous_pad),
          text_flag("--data-cache-path", "DIR", "read and write index caches here [none]", s.cache_path),
          number_flag("--mid-level-dataset-surplus", "samples beyond a blend's need [0.005]", s.surplus),
          switch_flag("--no-mmap-bin-files", "read .bin files instead of mapping them", s.no_mmap),
          int_flag("--vocab-size", "of mock data", s.vocab_size, 1),
          text_flag("--vocab-file", "FILE", "bert, t5: WordPiece vocabulary", s.vocab_file),
          int_flag("--vocab-extra-ids", "t5: sentinel tokens", s.extra_ids),
          int_flag("--decoder-seq-length", "t5: tokens of the decoder [128]", s.decoder_length, 1),
          number_flag("--mask-prob", "bert, t5: share of masked tokens [0.15]", s.mask_prob),
          number_flag("--short-seq-prob", "bert, t5: share of short samples [0.1]", s.short_prob),
          switch_flag("--bert-no-binary-head", "bert: samples of one part", s.no_binary_head),
          switch_flag("--multimodal", "inspect: the index holds modes", s.multimodal),
          switch_flag("--json", "inspect: one JSON document", s.json)};
}

DataSettings parse(const std::vector<std::string>& args) {
  DataSettings settings;
  settings.words = parse_flags(
      kCommand,
      join_lists(args, {"--data-path", "--train-data-path", "--valid-data-path", "--test-data-path"}),
      data_flags(settings));
  if (settings.words.empty()) throw UsageError("data: say inspect PREFIX, or samples with its options");
  settings.action = settings.words[0];
  if (settings.action != "inspect" && settings.action != "samples")
    throw UsageError(fmt::format("data: there is no '{}': say inspect or samples", settings.action));
  return settings;
}

struct LengthFacts {
  int64_t tokens = 0, shortest = 0, longest = 0, empty_documents = 0;
};

LengthFacts measure(const IndexedDataset& dataset) {
  LengthFacts facts;
  facts.shortest = dataset.sequences() > 0 ? dataset.lengths()[0] : 0;
  for (int64_t i = 0; i < dataset.sequences(); ++i) {
    const int64_t length = dataset.lengths()[i];
    facts.tokens += length;
    facts.shortest = std::min(facts.shortest, length);
    facts.longest = std::max(facts.longest, length);
  }
  for (int64_t d = 0; d < dataset.documents(); ++d)
    facts.empty_documents += dataset.document_index()[d] == dataset.document_index()[d + 1];
  return facts;
}

int inspect(Invocation& invocation, const DataSettings& settings) {
  if (settings.words.size() != 2)
    throw UsageError(fmt::format("data inspect: needs one prefix, not {}", settings.words.size() - 1));
  std::string prefix = settings.words[1];
  for (std::string_view ending : {".idx", ".bin"})
    if (prefix.ends_with(ending)) prefix = prefix.substr(0, prefix.size() - ending.size());
  const IndexedDataset dataset(prefix, {.multimodal = settings.multimodal});
  dataset.verify();
  const LengthFacts facts = measure(dataset);
  const double mean = dataset.sequences() > 0
                          ? static_cast<double>(facts.tokens) / static_cast<double>(dataset.sequences())
                          : 0.0;
  std::vector<int64_t> first;
  if (dataset.sequences() > 0) first.resize(static_cast<size_t>(std::min<int64_t>(16, dataset.lengths()[0])));
  if (!first.empty()) dataset.read(0, 0, first);
  if (settings.json) {
    Json json = Json::object();
    json["prefix"] = prefix;
    json["dtype"] = name_of(dataset.type());
    json["documents"] = dataset.documents();
    json["sequences"] = dataset.sequences();
    json["tokens"] = facts.tokens;
    json["shortest"] = facts.shortest;
    json["longest"] = facts.longest;
    json["mean"] = mean;
    json["empty_documents"] = facts.empty_documents;
    json["bin_bytes"] = dataset.bin_bytes();
    json["first_tokens"] = Json(Json::Array(first.begin(), first.end()));
    fmt::print(invocation.out, "{}\n", json.dump());
    return 0;
  }
  fmt::print(invocation.out, "dataset    {}\n", prefix);
  fmt::print(invocation.out, "dtype      {}\n", name_of(dataset.type()));
  fmt::print(invocation.out, "documents  {}, {} of them empty\n", dataset.documents(), facts.empty_documents);
  fmt::print(invocation.out, "sequences  {}\n", dataset.sequences());
  fmt::print(invocation.out, "tokens     {}, {} bytes\n", facts.tokens, dataset.bin_bytes());
  fmt::print(invocation.out, "length     {} to {}, mean {:.1f}\n", facts.shortest, facts.longest, mean);
  std::string begin;
  for (int64_t token : first) begin += fmt::format(" {}", token);
  fmt::print(invocation.out, "begins    {}\n", begin);
  return 0;
}

template <class T>
Tensor tensor_of(std::vector<T> values, Shape shape) {
  auto owner = std::make_shared<std::vector<T>>(std::move(values));
  return Tensor::wrap(owner->data(), std::move(shape), dtype_of<T>(), kCpu, owner);
}

// Tensors by name. Rows of samples are gathered field by field.
class Output {
 public:
  template <class T, class Values>
  void add_row(const std::string& name, const Values& values) {
    auto& rows = std::get<std::map<std::string, Rows<T>>>(fields_)[name];
    rows.values.insert(rows.values.end(), values.begin(), values.end());
    ++rows.count;
  }
  template <class T>
  void add_index(const std::string& name, const IndexArray& array) {
    std::vector<T> values;
    values.reserve(static_cast<size_t>(array.size()));
    for (int64_t i = 0; i < array.size(); ++i) values.push_back(static_cast<T>(array[i]));
    Shape shape{array.rows()};
    if (array.columns() > 1) shape = {array.rows(), array.columns()};
    tensors_.emplace_back(name, tensor_of(std::move(values), shape));
  }
  void add_range(const std::string& name, IndexRange range) {
    std::vector<int32_t> values;
    for (int64_t i = range.begin; i < range.end; ++i) values.push_back(static_cast<int32_t>(i));
    tensors_.emplace_back(name, tensor_of(std::move(values), {range.size()}));
  }
  void add_ids(const std::string& name, std::vector<int32_t> ids) {
    const Shape shape{static_cast<int64_t>(ids.size())};
    tensors_.emplace_back(name, tensor_of(std::move(ids), shape));
  }
  void write(const std::string& path) {
    std::apply([&](auto&... fields) { (finish(fields), ...); }, fields_);
    write_safetensors(path, tensors_);
  }

 private:
  template <class T>
  struct Rows {
    std::vector<T> values;
    int64_t count = 0;
  };
  template <class T>
  void finish(std::map<std::string, Rows<T>>& fields) {
    for (auto& [name, rows] : fields) {
      const int64_t columns = static_cast<int64_t>(rows.values.size()) / rows.count;
      const bool scalar = name.ends_with(".is_random") || name.ends_with(".truncated");
      Shape shape{rows.count, columns};
      if (scalar) shape = {rows.count};
      if (name.ends_with(".attention_mask")) {
        int64_t side = 0;
        while (side * side < columns) ++side;
        shape = {rows.count, 1, side, side};
      }
      tensors_.emplace_back(name, tensor_of(std::move(rows.values), shape));
    }
  }

  std::tuple<std::map<std::string, Rows<int32_t>>, std::map<std::string, Rows<float>>,
             std::map<std::string, Rows<uint8_t>>>
      fields_;
  std::vector<std::pair<std::string, Tensor>> tensors_;
};

void add_sample(Output& out, const std::string& split, int64_t i, const GptSample& sample) {
  out.add_row<int32_t>(split + ".tokens", sample.tokens);
  out.add_row<int32_t>(split + ".labels", sample.labels);
  out.add_row<float>(split + ".loss_mask", sample.loss_mask);
  out.add_row<int32_t>(split + ".position_ids", sample.position_ids);
  if (!sample.cu_seqlens.empty()) out.add_row<int32_t>(split + ".cu_seqlens", sample.cu_seqlens);
  if (!sample.attention_mask.empty() && i < 6)
    out.add_row<uint8_t>(split + ".attention_mask", sample.attention_mask);
}

void add_sample(Output& out, const std::string& split, int64_t, const BertSample& sample) {
  out.add_row<int32_t>(split + ".text", sample.text);
  out.add_row<int32_t>(split + ".types", sample.types);
  out.add_row<int32_t>(split + ".labels", sample.labels);
  out.add_row<int32_t>(split + ".loss_mask", sample.loss_mask);
  out.add_row<int32_t>(split + ".padding_mask", sample.padding_mask);
  out.add_row<int32_t>(split + ".is_random", std::array{sample.is_random});
  out.add_row<int32_t>(split + ".truncated", std::array{sample.truncated});
}

void add_sample(Output& out, const std::string& split, int64_t, const T5Sample& sample) {
  out.add_row<int32_t>(split + ".text_enc", sample.text_enc);
  out.add_row<int32_t>(split + ".enc_mask", sample.enc_mask);
  out.add_row<int32_t>(split + ".text_dec", sample.text_dec);
  out.add_row<int32_t>(split + ".dec_mask", sample.dec_mask);
  out.add_row<int32_t>(split + ".labels", sample.labels);
  out.add_row<int32_t>(split + ".loss_mask", sample.loss_mask);
  out.add_row<int32_t>(split + ".truncated", std::array{sample.truncated});
}

void add_indices(Output& out, const std::string& split, const GptDataset& dataset) {
  const GptIndices& indices = dataset.indices();
  out.add_range(split + ".indices", dataset.sequences());
  out.add_index<int32_t>(split + ".document_index", indices.documents);
  if (indices.samples.type() == IndexType::i8) {
    out.add_index<int64_t>(split + ".sample_index", indices.samples);
  } else {
    out.add_index<int32_t>(split + ".sample_index", indices.samples);
  }
  out.add_index<int64_t>(split + ".shuffle_index", indices.shuffle);
}

template <class Masked>
void add_indices(Output& out, const std::string& split, const Masked& dataset) {
  out.add_range(split + ".indices", dataset.samples().documents());
  out.add_index<int64_t>(split + ".sample_index", dataset.samples().map());
}

SplitSizes parse_sizes(const std::string& text) {
  const std::vector<std::string_view> words = comma_separated(text);
  if (words.size() != 3) throw UsageError("data samples: --samples needs three numbers, such as 100,10,all");
  SplitSizes sizes;
  for (size_t i = 0; i < 3; ++i)
    if (words[i] != "all") {
      sizes[i] = parse_int(kCommand, "--samples", words[i]);
      if (*sizes[i] < 0) throw UsageError(fmt::format("data samples: --samples {} is negative", text));
    }
  return sizes;
}

DataSource find_source(DataSettings& settings) {
  const auto append = [](std::vector<std::string>& to, const std::vector<std::string>& words) {
    to.insert(to.end(), words.begin(), words.end());
  };
  if (!settings.args_path.empty()) append(settings.paths[0], read_blend_words(settings.args_path));
  if (!settings.per_split_args_path.empty()) {
    const auto words = read_split_words(settings.per_split_args_path);
    for (size_t s = 0; s < words.size(); ++s) append(settings.paths[1 + s], words[s]);
  }
  if (settings.mock) {
    settings.paths[0] = {"mock"};
    settings.split = "1,1,1";
  }
  DataSource source{.blend = parse_blend(settings.paths[0]),
                    .surplus = settings.surplus,
                    .cache_path = settings.cache_path};
  for (size_t s = 0; s < 3; ++s) source.per_split[s] = parse_blend(settings.paths[1 + s]);
  const bool own = std::ranges::any_of(source.per_split, [](const auto& blend) { return blend.has_value(); });
  if (source.blend.has_value() == own)
    throw UsageError("data samples: give --data-path, or --train-data-path and its likes, or --mock-data");
  if (source.blend) source.matrix = split_matrix(parse_split(settings.split));
  return source;
}

DatasetIdentity identity_of(const DataSettings& settings, const DataSource& source) {
  DatasetIdentity identity{.seed = static_cast<uint32_t>(settings.seed), .seq_length = settings.seq_length};
  if (source.blend) {
    identity.split = settings.split;
    identity.matrix = source.matrix;
  }
  return identity;
}

template <class Dataset, class Make>
void write_samples(const DataSettings& settings, const DataSource& source, const Log& log, Make make) {
  const auto splits = build_splits<Dataset>(source, parse_sizes(settings.samples), make);
  Output out;
  for (Split split : kSplits) {
    const auto& data = splits[static_cast<size_t>(split)];
    if (!data) continue;
    const std::string name(name_of(split));
    if (data->blended()) {
      out.add_index<int16_t>(name + ".dataset_index", data->index().datasets);
      out.add_index<int64_t>(name + ".dataset_sample_index", data->index().samples);
    } else {
      add_indices(out, name, *data->datasets()[0]);
    }
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < std::min(settings.count, data->size()); ++i) {
      try {
        add_sample(out, name, i, data->sample(i));
        ids.push_back(static_cast<int32_t>(i));
      } catch (const Error& error) {
        if (settings.kind == "gpt") throw;
        log.warning("left out: {}", error.what());  // upstream stops at such samples
      }
    }
    if (settings.kind != "gpt") out.add_ids(name + ".sample_ids", std::move(ids));
  }
  out.write(settings.out);
}

void write_gpt(DataSettings& settings, const DataSource& source, const Log& log) {
  if (!settings.eod) throw UsageError("data samples: --eod-id N is missing");
  GptDatasetConfig config;
  config.identity = identity_of(settings, source);
  config.sample = settings.sample;
  config.sample.extra_token = !settings.no_extra_token;
  // A mask of L·L bytes a sample is worth writing only where it says more than its length.
  config.sample.create_attention_mask = settings.sample.reset_attention_mask && !settings.no_attention_mask;
  config.sample.eod = *settings.eod;
  config.sample.pad = resolve_pad_id(settings.pad, std::array{*settings.eod}, settings.ambiguous_pad);
  config.drop_last_partial_validation = !settings.keep_partial;
  config.cache = !settings.cache_path.empty();
  config.cache_path = settings.cache_path;
  config.threads = available_cores();
  std::shared_ptr<const SequenceStore> mock;
  if (settings.mock) {
    if (settings.vocab_size == 0) throw UsageError("data samples: --mock-data needs --vocab-size N");
    mock = std::make_shared<MockSequences>(settings.vocab_size, *settings.eod);
  }
  write_samples<GptDataset>(
      settings, source, log, [&](const std::string& prefix, Split split, auto ends, auto samples) {
        auto store =
            mock ? mock
                 : std::make_shared<IndexedDataset>(prefix, IndexedDatasetOptions{.mmap = !settings.no_mmap});
        return std::make_shared<const GptDataset>(std::move(store), config, split, ends, samples);
      });
}

void write_masked(DataSettings& settings, const DataSource& source, const Log& log) {
  if (settings.vocab_file.empty()) throw UsageError("data samples: --vocab-file FILE is missing");
  const bool t5 = settings.kind == "t5";
  MaskedDatasetConfig config;
  config.identity = identity_of(settings, source);
  config.vocabulary = read_word_pieces(settings.vocab_file, settings.extra_ids);
  WordPieces& pieces = config.vocabulary;
  if (settings.pad) pieces.pad = *settings.pad;
  const std::array others = {pieces.cls, pieces.sep, pieces.mask, pieces.bos, pieces.eos};
  if (pieces.pad >= 0) pieces.pad = resolve_pad_id(pieces.pad, others, settings.ambiguous_pad);
  config.masking = {.probability = settings.mask_prob, .max_ngram = t5 ? 10 : 3, .geometric = t5};
  config.short_sequence_probability = settings.short_prob;
  config.cache = !settings.cache_path.empty();
  config.cache_path = settings.cache_path;
  auto open = [&](const std::string& prefix) {
    return std::make_shared<const IndexedDataset>(prefix, IndexedDatasetOptions{.mmap = !settings.no_mmap});
  };
  if (t5) {
    write_samples<T5Dataset>(settings, source, log,
                             [&](const std::string& prefix, Split split, auto ends, auto samples) {
                               return std::make_shared<const T5Dataset>(
                                   open(prefix), config, settings.decoder_length, split, ends, samples);
                             });
  } else {
    write_samples<BertDataset>(settings, source, log,
                               [&](const std::string& prefix, Split split, auto ends, auto samples) {
                                 return std::make_shared<const BertDataset>(
                                     open(prefix), config, !settings.no_binary_head, split, ends, samples);
                               });
  }
}

int samples(Invocation& invocation, DataSettings& settings) {
  if (settings.words.size() > 1)
    throw UsageError(fmt::format("data samples: '{}' belongs to no option", settings.words[1]));
  if (settings.out.empty()) throw UsageError("data samples: --out FILE is missing");
  if (settings.samples.empty()) throw UsageError("data samples: --samples TRAIN,VALID,TEST is missing");
  if (settings.seq_length == 0) throw UsageError("data samples: --seq-length N is missing");
  const DataSource source = find_source(settings);
  if (settings.kind == "gpt") {
    write_gpt(settings, source, invocation.log);
  } else if (settings.kind == "bert" || settings.kind == "t5") {
    write_masked(settings, source, invocation.log);
  } else {
    throw UsageError(fmt::format("data samples: --kind {}: expected gpt, bert or t5", settings.kind));
  }
  print_path(invocation, settings.out, settings.json);
  return 0;
}

}  // namespace

std::string data_help() {
  DataSettings settings;
  return "usage: megatron data inspect PREFIX [--json]\n"
         "       megatron data samples --data-path … --seq-length N --samples A,B,C --eod-id N --out FILE "
         "[options]\n"
         "\n"
         "inspect  checks PREFIX.bin and PREFIX.idx and prints their counts\n"
         "samples  writes the order and the first samples that training with these flags would see\n"
         "\n" +
         flags_help(data_flags(settings));
}

int run_data(Invocation& invocation) {
  DataSettings settings = parse(invocation.args);
  return refuse_faults("", [&] {
    return settings.action == "inspect" ? inspect(invocation, settings) : samples(invocation, settings);
  });
}

}  // namespace megatron
