#pragma once

#include <optional>
#include <string>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/config/problems.h"

namespace megatron {

// A flag as it stood on the command line.
struct FlagUse {
  std::string name;                 // "--lr"
  std::vector<std::string> values;  // the words that belong to it
  bool attached = false;            // written --lr=3e-4
  std::string text() const;         // "--lr 3e-4"
};

// A configuration file as text, and its name for messages.
struct ConfigText {
  std::string name;
  std::string text;
};

// All that says something about a configuration, weakest first.
struct Sources {
  std::string hf_origin;               // the folder of --hf
  Json hf;                             // its fields of `model`, an object
  bool hf_has_weights = true;          // whose shapes no other source may change
  std::optional<ConfigText> recipe;    // YAML
  std::optional<ConfigText> file;      // YAML
  std::vector<FlagUse> flags;          // in order; the last of a kind wins
  std::vector<std::string> overrides;  // "optimizer.lr=3e-4", in order
  std::string checkpoint_origin;       // what --load names, with --use-checkpoint-args
  Json checkpoint;         // the fields of `model` that its run had changed; null: it counts for nothing
  Json checkpoint_layout;  // sizes of its layout, with --use-mp-args-from-checkpoint-args; null: as before
  std::optional<int64_t> processes;  // how many were launched, where that is known
  std::vector<Problem> problems;     // what was already found wrong, to be reported with all else
  bool unread = false;  // a folder, recipe or file that was named cannot be read: one of the problems
};

}  // namespace megatron
