#include "megatron/cli/commands.h"

#include <algorithm>

#include "megatron/base/json.h"
#include "megatron/base/refuse.h"
#include "megatron/cli/commands/data_pack.h"
#include "megatron/cli/commands/data_samples.h"
#include "megatron/datasets/indexed/indexed_dataset.h"
#include "megatron/datasets/indexed/indexed_writer.h"

namespace megatron {
namespace {

constexpr std::string_view kCommand = "data";

DataSettings parse(const std::vector<std::string>& args) {
  DataSettings settings;
  settings.words = parse_flags(kCommand, args, data_flags(settings));
  if (settings.words.empty())
    throw UsageError("data: say inspect PREFIX, or merge, samples or pack with their options");
  settings.action = settings.words[0];
  if (settings.action != "inspect" && settings.action != "merge" && settings.action != "samples" &&
      settings.action != "pack")
    throw UsageError(
        fmt::format("data: there is no '{}': say inspect, merge, samples or pack", settings.action));
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

// The prefix of a dataset that one of its files may stand for.
std::string prefix_of(const std::string& word) {
  for (std::string_view ending : {".idx", ".bin"})
    if (word.ends_with(ending)) return word.substr(0, word.size() - ending.size());
  return word;
}

int merge(Invocation& invocation, const DataSettings& settings) {
  if (settings.words.size() < 2) throw UsageError("data merge: needs the prefixes of datasets");
  if (settings.out.empty()) throw UsageError("data merge: --out PREFIX is missing");
  std::vector<std::string> prefixes;
  for (size_t i = 1; i < settings.words.size(); ++i) prefixes.push_back(prefix_of(settings.words[i]));
  merge_datasets(prefixes, settings.out, settings.multimodal);
  fmt::print(invocation.out, "{}\n", settings.out);
  return 0;
}

int inspect(Invocation& invocation, const DataSettings& settings) {
  if (settings.words.size() != 2)
    throw UsageError(fmt::format("data inspect: needs one prefix, not {}", settings.words.size() - 1));
  const std::string prefix = prefix_of(settings.words[1]);
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

}  // namespace

std::string data_help() {
  DataSettings settings;
  return "usage: megatron data inspect PREFIX [--json]\n"
         "       megatron data merge PREFIX PREFIX … --out PREFIX\n"
         "       megatron data samples --data-path … --seq-length N --samples A,B,C --eod-id N --out FILE "
         "[options]\n"
         "       megatron data pack --data-path FILE.jsonl --seq-length N --tokenizer-type T --out "
         "FILE.parquet\n"
         "\n"
         "inspect  checks PREFIX.bin and PREFIX.idx and prints their counts\n"
         "merge    joins datasets of one dtype in this order into one\n"
         "samples  writes the order and the first samples that training with these flags would see\n"
         "pack     packs conversations for --packing offline, as Bridge's packed Parquet\n"
         "\n" +
         flags_help(data_flags(settings));
}

int run_data(Invocation& invocation) {
  DataSettings settings = parse(invocation.args);
  return refuse_faults("", [&] {
    return settings.action == "inspect" ? inspect(invocation, settings)
           : settings.action == "merge" ? merge(invocation, settings)
           : settings.action == "pack"  ? pack_data(invocation, settings)
                                        : write_data_samples(invocation, settings);
  });
}

}  // namespace megatron
