#pragma once

#include <gtest/gtest.h>

#include <map>

#include "megatron/checkpoint/load.h"
#include "support/temp_dir.h"
#include "unit/cli/run_command.h"

namespace megatron::testing {

// A run of ten iterations of a tiny model, with what else is asked for.
inline std::vector<std::string> training(const std::vector<std::string>& further = {}) {
  std::vector<std::string> args = {"pretrain",    "--num-layers",
                                   "2",           "--hidden-size",
                                   "16",          "--num-attention-heads",
                                   "2",           "--seq-length",
                                   "8",           "--max-position-embeddings",
                                   "8",           "model.vocab_size=32",
                                   "--mock-data", "--micro-batch-size",
                                   "1",           "--global-batch-size",
                                   "4",           "--train-iters",
                                   "10",          "--lr",
                                   "1e-2",        "--device",
                                   "cpu"};
  args.insert(args.end(), further.begin(), further.end());
  return args;
}

inline Outcome train(const std::vector<std::string>& further = {}) { return run_command(training(further)); }

// Saves into a folder after every fifth iteration, and goes on from it.
inline std::vector<std::string> in_folder(const std::string& folder, std::vector<std::string> further = {}) {
  further.insert(further.begin(), {"--save", folder, "--load", folder, "--save-interval", "5"});
  return further;
}

// Every piece of a sound checkpoint with its checksum: equal where all bits are.
inline std::map<std::string, std::string> contents(const std::string& path) {
  CheckpointReader reader(path);
  EXPECT_TRUE(verify_checkpoint(reader.path()).empty()) << verify_checkpoint(reader.path()).text();
  std::map<std::string, std::string> pieces;
  for (const StoredTensor& tensor : reader.index().tensors)
    for (const StoredChunk& piece : tensor.pieces) pieces[piece_key(tensor, piece.box)] = piece.checksum;
  return pieces;
}

// What an undisturbed run ends with.
inline std::map<std::string, std::string> undisturbed(const std::vector<std::string>& further = {}) {
  TempDir folder;
  std::vector<std::string> args = further;
  args.insert(args.end(), {"--save", folder / "c"});
  const Outcome outcome = train(args);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return contents(folder / "c/iter_0000010");
}

inline void expect_said(const Outcome& outcome, int code, const std::string& words) {
  EXPECT_EQ(outcome.code, code) << outcome.err;
  EXPECT_NE(outcome.err.find(words), std::string::npos) << words << "\n  was not said in\n" << outcome.err;
}

inline void flip_last_bit(const std::string& path) {
  std::string text = read_text(path);
  text.back() = static_cast<char>(text.back() ^ 1);
  write_text(path, text);
}

// As if the run had stopped after iteration 5.
inline void forget_the_end(const std::string& folder) {
  std::filesystem::remove_all(folder + "/iter_0000010");
  write_text(folder + "/latest_checkpointed_iteration.txt", "5\n");
}

}  // namespace megatron::testing
