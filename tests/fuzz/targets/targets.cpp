#include "fuzz/targets/targets.h"

#include <algorithm>

#include "fuzz/parquet_columns.h"
#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/checkpoint/index.h"
#include "megatron/checkpoint/safetensors.h"
#include "megatron/checkpoint/torch/dist_metadata.h"
#include "megatron/checkpoint/torch/pickle.h"
#include "megatron/checkpoint/torch/torch_archive.h"
#include "megatron/datasets/indexed/indexed_dataset.h"
#include "megatron/datasets/parquet/parquet_format.h"
#include "megatron/datasets/parquet/parquet_reader.h"
#include "megatron/datasets/text/document_reader.h"
#include "megatron/datasets/text/json_fields.h"
#include "megatron/tokenizers/chat/chat_template.h"
#include "megatron/tokenizers/hf_tokenizer.h"
#include "megatron/tokenizers/sentencepiece/sp_tokenizer.h"
#include "support/temp_dir.h"

namespace megatron::testing {
namespace {

// A new file each time: one that is cut and written again is flushed to the disk when it is closed.
std::string put(const std::string& folder, const char* name, std::string_view bytes) {
  const std::string path = folder + "/" + name;
  std::filesystem::remove(path);
  write_text(path, bytes);
  return path;
}

void use(const Tokenizer& tokenizer) {
  for (const char* text :
       {"Hello world's 123  x", "\u4f60\u597d\u3002 e\u0301 \U0001f600\n", "\xff\xe4<s>"}) {
    const auto ids = tokenizer.encode(text, true);
    tokenizer.encode_with_offsets(text);
    try {
      tokenizer.decode(ids);
    } catch (const Error&) {  // a template may name ids that the vocabulary lacks
    }
  }
}

void read_idx(std::string_view bytes, const std::string& folder) {
  put(folder, "x.idx", bytes);
  if (!std::filesystem::exists(folder + "/x.bin")) put(folder, "x.bin", std::string(256, '\1'));
  const IndexedDataset dataset(folder + "/x");
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < dataset.sequences(); ++i) {
    tokens.resize(static_cast<size_t>(std::clamp(dataset.lengths()[i], 0, 1000)));
    try {
      dataset.read(i, 0, tokens);  // safe before verify() has seen the entries
    } catch (const Error&) {
    }
  }
  dataset.verify();
}

void read_tokenizer_json(std::string_view bytes, const std::string&) {
  using namespace tokenizers;
  use(Tokenizer(std::make_shared<HfTokenizer>(TokenizerJson::parse(bytes, "x"), SpecialIds{})));
}

void read_sentencepiece(std::string_view bytes, const std::string&) {
  using namespace tokenizers;
  use(Tokenizer(std::make_shared<SpTokenizer>(SentencePieceFile::parse(bytes, "x"), "x")));
}

void render_template(std::string_view bytes, const std::string&) {
  chat::ChatOptions options;
  options.limits = {.steps = 100'000, .memory_bytes = size_t{16} << 20, .output_bytes = size_t{1} << 20};
  const Json names = Json::parse(
      R"({"messages": [{"role": "user", "content": "é"}, {"role": "assistant", "content": "b", "tool_calls":
          [{"id": "a", "type": "function", "function": {"name": "f", "arguments": {"a": [1, 2.5]}}}]}],
          "tools": null, "add_generation_prompt": true, "bos_token": "<s>", "x": [["a"], {"c": null}, "d"],
          "n": 3})");
  chat::ChatTemplate(bytes).render(names, options);
}

void read_jsonl(std::string_view bytes, const std::string& folder) {
  // Lines and a JSON array have readers of their own.
  for (const char* name : {"x.jsonl", "x.json"}) {
    const auto documents = open_documents({put(folder, name, bytes)}, TextFormat::automatic, {"text"}, 64);
    const JsonFields fields({"text"});
    std::vector<JsonText> values;
    try {
      for (DocumentBlock block; documents->next(block);)
        for (size_t at = 0; at < block.lines.size();) {
          const size_t end = std::min(block.lines.find('\n', at), block.lines.size());
          fields.parse(std::string_view(block.lines).substr(at, end - at), values);
          at = end + 1;
        }
    } catch (const Error&) {
    }
  }
}

void read_parquet(std::string_view bytes, const std::string& folder) {
  read_all_columns(ParquetFile(put(folder, "x.parquet", bytes)));
}

void read_checkpoint_index(std::string_view bytes, const std::string&) {
  const Json json = Json::parse(bytes, "index.json");
  for (const IndexScope scope : {IndexScope::whole, IndexScope::share}) {
    try {
      CheckpointIndex::from_json(json, "index.json", scope).to_json();
    } catch (const Error&) {
    }
  }
}

void read_safetensors(std::string_view bytes, const std::string& folder) {
  const SafetensorsFile file(put(folder, "x.safetensors", bytes));
  for (const SafetensorsEntry& entry : file.entries()) {
    try {
      file.tensor(entry.name);
    } catch (const Error&) {  // U64 beyond int64
    }
  }
}

void read_metadata(std::string_view bytes, const std::string&) {
  parse_dist_metadata(std::as_bytes(std::span(bytes)), ".metadata");
}

void read_pickle(std::string_view bytes, const std::string&) {
  const PickleDocument document(std::as_bytes(std::span(bytes)), "x");
  to_json(document.root(), "x");
}

void read_torch_archive(std::string_view bytes, const std::string& folder) {
  const std::string path = put(folder, "x.pt", bytes);
  const TorchArchive archive(FileSlice::whole(path), path);
  if (archive.root().is(PickleKind::tensor))
    archive.tensor(archive.root(), "x");
  else
    to_json(archive.root(), path);
}

constexpr FuzzTarget kTargets[] = {{"idx", read_idx},
                                   {"tokenizer_json", read_tokenizer_json},
                                   {"sentencepiece", read_sentencepiece},
                                   {"template", render_template},
                                   {"jsonl", read_jsonl},
                                   {"parquet", read_parquet},
                                   {"checkpoint_index", read_checkpoint_index, 400},
                                   {"safetensors", read_safetensors, 400},
                                   {"dist_metadata", read_metadata, 400},
                                   {"pickle", read_pickle, 400},
                                   {"torch_archive", read_torch_archive, 400}};

}  // namespace

std::span<const FuzzTarget> fuzz_targets() { return kTargets; }

void feed(const FuzzTarget& target, std::string_view bytes, const std::string& folder) {
  try {
    target.read(bytes, folder);
  } catch (const Error&) {
  }
}

}  // namespace megatron::testing
