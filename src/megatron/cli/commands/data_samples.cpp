#include "megatron/cli/commands/data_samples.h"

#include <algorithm>

#include "megatron/cli/commands/data_pack.h"
#include "megatron/cli/commands/sample_output.h"
#include "megatron/datasets/gpt/blended_dataset.h"
#include "megatron/datasets/gpt/mock_sequences.h"
#include "megatron/datasets/indexed/indexed_dataset.h"
#include "megatron/datasets/masked/bert_dataset.h"
#include "megatron/datasets/masked/t5_dataset.h"
#include "megatron/datasets/masked/word_pieces.h"
#include "megatron/datasets/sft/sft_rows.h"
#include "megatron/datasets/sft/sft_templates.h"

namespace megatron {
namespace {

constexpr std::string_view kCommand = "data";

void add_sample(SampleOutput& out, const std::string& split, int64_t i, const GptSample& sample) {
  out.add_row<int32_t>(split + ".tokens", sample.tokens);
  out.add_row<int32_t>(split + ".labels", sample.labels);
  if (out.integer_masks) {
    out.add_row<int32_t>(split + ".loss_mask", sample.loss_mask);
  } else {
    out.add_row<float>(split + ".loss_mask", sample.loss_mask);
  }
  out.add_row<int32_t>(split + ".position_ids", sample.position_ids);
  if (!sample.cu_seqlens.empty()) out.add_row<int32_t>(split + ".cu_seqlens", sample.cu_seqlens);
  if (sample.max_seqlen > 0) out.add_row<int32_t>(split + ".max_seqlen", std::array{sample.max_seqlen});
  if (!sample.attention_mask.empty() && i < 6)
    out.add_row<uint8_t>(split + ".attention_mask", sample.attention_mask);
}

void add_sample(SampleOutput& out, const std::string& split, int64_t, const BertSample& sample) {
  out.add_row<int32_t>(split + ".text", sample.text);
  out.add_row<int32_t>(split + ".types", sample.types);
  out.add_row<int32_t>(split + ".labels", sample.labels);
  out.add_row<int32_t>(split + ".loss_mask", sample.loss_mask);
  out.add_row<int32_t>(split + ".padding_mask", sample.padding_mask);
  out.add_row<int32_t>(split + ".is_random", std::array{sample.is_random});
  out.add_row<int32_t>(split + ".truncated", std::array{sample.truncated});
}

void add_sample(SampleOutput& out, const std::string& split, int64_t, const T5Sample& sample) {
  out.add_row<int32_t>(split + ".text_enc", sample.text_enc);
  out.add_row<int32_t>(split + ".enc_mask", sample.enc_mask);
  out.add_row<int32_t>(split + ".text_dec", sample.text_dec);
  out.add_row<int32_t>(split + ".dec_mask", sample.dec_mask);
  out.add_row<int32_t>(split + ".labels", sample.labels);
  out.add_row<int32_t>(split + ".loss_mask", sample.loss_mask);
  out.add_row<int32_t>(split + ".truncated", std::array{sample.truncated});
}

void add_indices(SampleOutput& out, const std::string& split, const GptDataset& dataset) {
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
void add_indices(SampleOutput& out, const std::string& split, const Masked& dataset) {
  out.add_range(split + ".indices", dataset.samples().documents());
  out.add_index<int64_t>(split + ".sample_index", dataset.samples().map());
}

// Upstream's samples: one stream of random numbers a split, moved on by every sample in turn.
class FimInTurn {
 public:
  FimInTurn(FimDataset dataset, uint32_t seed) : dataset_(std::move(dataset)), random_(seed) {}
  int64_t size() const { return dataset_.size(); }
  const Json& description() const { return dataset_.description(); }
  const GptDataset& dataset() const { return dataset_.dataset(); }
  GptSample sample(int64_t i) const { return dataset_.sample(i, random_); }

 private:
  FimDataset dataset_;
  mutable RandomState random_;
};

void add_indices(SampleOutput& out, const std::string& split, const FimInTurn& dataset) {
  add_indices(out, split, dataset.dataset());
}

void add_indices(SampleOutput& out, const std::string& split, const SftDataset& dataset) {
  out.add_range(split + ".indices", dataset.rows());
}

// Rows one by one, as training without packing reads them.
class UnpackedRows {
 public:
  UnpackedRows(SftRows rows, int64_t length, int64_t pad)
      : rows_(std::move(rows)), length_(length), pad_(pad) {}
  int64_t size() const { return rows_.size(); }
  const Json& description() const { return rows_.description(); }
  GptSample sample(int64_t i) const { return unpacked_sample(rows_.sample(i), length_, pad_); }

 private:
  SftRows rows_;
  int64_t length_, pad_;
};

void add_indices(SampleOutput&, const std::string&, const UnpackedRows&) {}

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
  identity.tokenizer = settings.tokenizer.description();
  if (source.blend) {
    identity.split = settings.split;
    identity.matrix = source.matrix;
  }
  return identity;
}

template <class Dataset, class Make>
void write_samples(const DataSettings& settings, const DataSource& source, const Log& log, Make make) {
  const auto splits = build_splits<Dataset>(source, parse_sizes(settings.samples), make);
  SampleOutput out;
  out.integer_masks = settings.kind != "gpt";
  const bool masked = settings.kind == "bert" || settings.kind == "t5";
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
        if (!masked) throw;
        log.warning("left out: {}", error.what());  // upstream stops at such samples
      }
    }
    if (masked) out.add_ids(name + ".sample_ids", std::move(ids));
  }
  out.write(settings.out);
}

GptDatasetConfig gpt_config(const DataSettings& settings, const DataSource& source) {
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
  return config;
}

void write_gpt(DataSettings& settings, const DataSource& source, const Log& log) {
  const GptDatasetConfig config = gpt_config(settings, source);
  std::shared_ptr<const SequenceStore> mock;
  if (settings.mock) {
    if (settings.tokenizer.options.vocab_size == 0)
      throw UsageError("data samples: --mock-data needs --vocab-size N");
    mock = std::make_shared<MockSequences>(settings.tokenizer.options.vocab_size, *settings.eod);
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
  if (settings.tokenizer.options.vocab_file.empty())
    throw UsageError("data samples: --vocab-file FILE is missing");
  const bool t5 = settings.kind == "t5";
  MaskedDatasetConfig config;
  config.identity = identity_of(settings, source);
  config.vocabulary =
      read_word_pieces(settings.tokenizer.options.vocab_file, settings.tokenizer.options.vocab_extra_ids);
  WordPieces& pieces = config.vocabulary;
  if (settings.pad) pieces.pad = *settings.pad;
  if (pieces.pad >= 0)
    pieces.pad = resolve_pad_id(pieces.pad, std::array{pieces.eos}, settings.ambiguous_pad);
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

void write_fim(DataSettings& settings, const DataSource& source, const Log& log) {
  const Tokenizer tokenizer = settings.tokenizer.open("data samples --kind " + settings.kind);
  find_fim_tokens(tokenizer, settings.fim_pieces, settings.fim);
  const SpecialIds ids = tokenizer.special_ids();
  if (!settings.eod) settings.eod = ids.eod;
  if (!settings.pad && ids.pad >= 0) settings.pad = ids.pad;
  GptDatasetConfig config = gpt_config(settings, source);
  write_samples<FimInTurn>(
      settings, source, log, [&](const std::string& prefix, Split split, auto ends, auto samples) {
        auto store =
            std::make_shared<IndexedDataset>(prefix, IndexedDatasetOptions{.mmap = !settings.no_mmap});
        GptDataset dataset(std::move(store), config, split, ends, samples, "GPTFIMDataset");
        return std::make_shared<const FimInTurn>(
            FimDataset(std::move(dataset), settings.fim,
                       text_codec(tokenizer, settings.tokenizer.adds_special_tokens())),
            config.identity.seed);
      });
}

void write_sft(const DataSettings& settings, const DataSource& source, const Log& log) {
  const Tokenizer tokenizer = settings.tokenizer.open("data samples --kind " + settings.kind);
  const chat::ChatTemplates templates = find_chat_templates(settings.tokenizer.model, settings.chat_template,
                                                            settings.tokenizer.options.metadata);
  if (!settings.prompt_format.empty()) {
    const MegatronSftFormat format = megatron_sft_format(settings.prompt_format, tokenizer, templates,
                                                         settings.seq_length, settings.context_parallel);
    return write_samples<SftDataset>(
        settings, source, log, [&](const std::string& path, Split, auto ends, auto samples) {
          return std::make_shared<const SftDataset>(std::make_shared<const JsonRows>(path), format.options,
                                                    format.encode, ends, samples);
        });
  }
  const SftEncoder encode = sft_encoder_of(settings, tokenizer, templates);
  write_samples<UnpackedRows>(
      settings, source, log, [&](const std::string& path, Split, auto ends, auto samples) {
        return std::make_shared<const UnpackedRows>(SftRows(path, encode, ends, 0, samples),
                                                    settings.seq_length, sft_pad_of(tokenizer));
      });
}

}  // namespace

int write_data_samples(Invocation& invocation, DataSettings& settings) {
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
  } else if (settings.kind == "fim") {
    write_fim(settings, source, invocation.log);
  } else if (settings.kind == "sft") {
    write_sft(settings, source, invocation.log);
  } else {
    throw UsageError(
        fmt::format("data samples: --kind {}: expected gpt, bert, t5, fim or sft", settings.kind));
  }
  print_path(invocation, settings.out, settings.json);
  return 0;
}

}  // namespace megatron
