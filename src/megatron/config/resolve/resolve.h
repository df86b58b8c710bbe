#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megatron/base/gpu_facts.h"
#include "megatron/config/config.h"
#include "megatron/config/resolve/config_builder.h"
#include "megatron/config/sources/command_line.h"
#include "megatron/config/sources/sources.h"

namespace megatron {

struct ResolveOptions {
  Purpose purpose = Purpose::training;
  bool allow_unavailable = false;  // list settings of features that this build lacks instead of refusing them
  bool rules = true;               // check that settings suit each other, not only each by itself
  // Gives the GPUs of this machine; called only where the run would use them.
  std::function<std::vector<GpuFacts>()> gpus = {};
  // Tokens of the configured tokenizer, asked where there is one: it says how large the vocabulary is.
  std::function<int64_t(const TokenizerConfig&)> vocabulary = {};
};

// A configuration that passed every check, and where each value came from.
struct Resolved {
  Config config;
  std::vector<Origin> origins;       // by the settings' places in the catalog
  std::vector<std::string> notes;    // what has no effect here, was switched off, and the like
  std::vector<Problem> unavailable;  // only with allow_unavailable
  std::optional<int64_t> world_size;
  std::optional<int64_t> data_parallel_size;
  // Where the ranks would compute on GPUs, the kinds of them; one of which nothing is known where they were
  // not asked. What their kernels cannot do is refused by a step on the meta device.
  std::vector<GpuFacts> gpus;

  const Origin& origin(std::string_view name) const;
  Json given() const;    // what sources gave, by section: as a --config file, it gives the same
  Json to_json() const;  // config, origins of what is not default, notes, unavailable
};

// Merges the sources, fills in what they imply and checks the whole. Throws Refused with everything that is
// wrong.
Resolved resolve(const Sources& sources, const ResolveOptions& options = {});

// How --hf, --recipe and checkpoints are read; other layers know that.
struct SourceReaders {
  std::function<Json(const std::string& dir)> hf;             // the fields of `model`
  std::function<ConfigText(const std::string& name)> recipe;  // YAML
  // The fields of `model` that the run of a checkpoint had changed; null where there is no checkpoint. Of the
  // newest in `dir` where no step is named.
  using OfCheckpoint = std::function<Json(const std::string& dir, std::optional<int64_t> step)>;
  OfCheckpoint checkpoint = {};
  OfCheckpoint checkpoint_layout = {};  // as layout_settings()
};

// The command line's sources with the files that it names.
Sources read_sources(const CommandLine& line, const SourceReaders& readers = {});

}  // namespace megatron
