#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "megatron/base/median.h"
#include "megatron/bridge/convert.h"
#include "megatron/checkpoint/safetensors_directory.h"
#include "megatron/tensor/philox.h"
#include "support/temp_dir.h"

// A model of several gigabytes through the bridge and back: how fast beside a plain copy of its files, with
// how much memory of its own, and whether every byte returns.
namespace megatron {
namespace {

namespace fs = std::filesystem;
using testing::TempDir;

constexpr int64_t kHidden = 2048, kFfn = 8192, kLayers = 20, kVocabulary = 128256, kGroups = 8, kHeads = 32;
constexpr int64_t kFiles = 3;
constexpr int kRounds = 3;

std::vector<SafetensorsItem> layer_tensors(int64_t layer) {
  const std::string at = fmt::format("model.layers.{}.", layer);
  const int64_t keys = kHidden / kHeads * kGroups;
  std::vector<SafetensorsItem> items;
  for (const auto& [name, shape] :
       std::initializer_list<std::pair<const char*, Shape>>{{"input_layernorm", {kHidden}},
                                                            {"mlp.down_proj", {kHidden, kFfn}},
                                                            {"mlp.gate_proj", {kFfn, kHidden}},
                                                            {"mlp.up_proj", {kFfn, kHidden}},
                                                            {"post_attention_layernorm", {kHidden}},
                                                            {"self_attn.k_proj", {keys, kHidden}},
                                                            {"self_attn.o_proj", {kHidden, kHidden}},
                                                            {"self_attn.q_proj", {kHidden, kHidden}},
                                                            {"self_attn.v_proj", {keys, kHidden}}})
    items.push_back({at + name + ".weight", DType::BF16, shape});
  return items;
}

// A Llama of 1.75 billion parameters in bf16, in shards with an index. Returns its bytes.
int64_t write_model(const std::string& directory) {
  fs::create_directories(directory);
  std::vector<std::vector<SafetensorsItem>> files(kFiles);
  files[0].push_back({"model.embed_tokens.weight", DType::BF16, Shape{kVocabulary, kHidden}});
  files[kFiles - 1].push_back({"lm_head.weight", DType::BF16, Shape{kVocabulary, kHidden}});
  files[kFiles - 1].push_back({"model.norm.weight", DType::BF16, Shape{kHidden}});
  for (int64_t layer = 0; layer < kLayers; ++layer)
    for (SafetensorsItem& item : layer_tensors(layer))
      files[static_cast<size_t>(layer * kFiles / kLayers)].push_back(std::move(item));

  // Every tensor repeats one block of random bits, from a place of its own on.
  std::vector<uint32_t> noise(size_t{1} << 22);
  for (size_t i = 0; i < noise.size(); i += 4) {
    const auto four = Philox::at({99, 0}, i);
    std::copy_n(four.word, 4, noise.begin() + static_cast<std::ptrdiff_t>(i));
  }
  const auto block = std::as_bytes(std::span<const uint32_t>(noise));
  int64_t total = 0;
  Json map = Json::object();
  for (size_t f = 0; f < files.size(); ++f) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", f + 1, files.size());
    SafetensorsWriter writer(directory + "/" + name, files[f], {{"format", "pt"}});
    for (size_t t = 0; t < files[f].size(); ++t) {
      const SafetensorsItem& item = files[f][t];
      map[item.name] = name;
      const size_t bytes = static_cast<size_t>(item.shape.numel()) * 2;
      total += static_cast<int64_t>(bytes);
      for (size_t at = 0, from = (f * 1000 + t) * 512 % block.size(); at < bytes; from = 0) {
        const size_t count = std::min(bytes - at, block.size() - from);
        writer.write(item.name, at, block.subspan(from, count));
        at += count;
      }
    }
    writer.commit();
  }
  Json index = Json::object();
  index["metadata"]["total_size"] = total;
  index["weight_map"] = map;
  std::ofstream(directory + "/model.safetensors.index.json") << index.dump(2);
  std::ofstream(directory + "/config.json") << fmt::format(
      R"({{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": {}, "intermediate_size": {},
"num_hidden_layers": {}, "num_attention_heads": {}, "num_key_value_heads": {}, "vocab_size": {},
"max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "hidden_act": "silu",
"attention_bias": false, "mlp_bias": false, "tie_word_embeddings": false, "torch_dtype": "bfloat16"}})",
      kHidden, kFfn, kLayers, kHeads, kGroups, kVocabulary);
  return total;
}

double seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Reads and writes in pieces that stay in a cache, the fastest way, and waits for the disk as a conversion
// has to.
void copy_files(const std::string& from, const std::string& to) {
  fs::create_directories(to);
  std::vector<char> buffer(size_t{1} << 20);
  for (const auto& entry : fs::directory_iterator(from)) {
    const int in = ::open(entry.path().c_str(), O_RDONLY);
    const int out = ::open((to + "/" + entry.path().filename().string()).c_str(), O_WRONLY | O_CREAT, 0644);
    for (ssize_t n; (n = ::read(in, buffer.data(), buffer.size())) > 0;)
      ASSERT_EQ(::write(out, buffer.data(), static_cast<size_t>(n)), n);
    ::fsync(out);
    ::close(in);
    ::close(out);
  }
}

// Memory of the process that no file stands behind, in bytes.
int64_t anonymous_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) * 1024;
  return 0;
}

// The most that a piece of work adds to it.
int64_t peak_growth(const std::function<void()>& work) {
  const int64_t before = anonymous_memory();
  std::atomic<bool> done = false;
  int64_t peak = before;
  std::thread watcher([&] {
    while (!done) {
      peak = std::max(peak, anonymous_memory());
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  work();
  done = true;
  watcher.join();
  return peak - before;
}

void expect_same_files(const std::string& a, const std::string& b) {
  const SafetensorsDirectory first(a), second(b);
  EXPECT_EQ(first.names(), second.names());
  for (const std::string& name : first.names()) {
    const Tensor x = first.tensor(name), y = second.tensor(name);
    ASSERT_EQ(x.shape(), y.shape()) << name;
    ASSERT_EQ(x.dtype(), y.dtype()) << name;
    ASSERT_EQ(std::memcmp(x.raw(), y.raw(), x.bytes()), 0) << name;
    EXPECT_EQ(fs::path(first.file_of(name).path()).filename(),
              fs::path(second.file_of(name).path()).filename());
  }
}

TEST(LargeConversion, AsFastAsCopyingWithLittleMemory) {
  TempDir folder;
  const int64_t need = int64_t{18} << 30;
  if (static_cast<int64_t>(fs::space(folder.path()).available) < need)
    GTEST_SKIP() << "NOT TESTED: conversion of a model of several gigabytes needs " << (need >> 30)
                 << " GiB of free disk at " << folder.path();
  const std::string source = folder / "hf", copied = folder / "copy", root = folder / "ckpt",
                    back = folder / "back";
  const double gigabytes = static_cast<double>(write_model(source)) * 1e-9;
  std::string checkpoint;
  int64_t import_memory = 0, export_memory = 0;
  // Each writes over what its last round left and is told apart from the others by nothing else: a round of
  // each in turn, so that what else the machine does hits all of them, and the memory that files are cached
  // in is as warm for one as for the other.
  auto timed = [](const std::string& target, const std::function<void()>& work) {
    fs::remove_all(target);
    return seconds(work);
  };
  std::vector<double> copies, imports, exports;
  for (int round = 0; round <= kRounds; ++round) {
    const double copy = timed(copied, [&] { copy_files(source, copied); });
    const double in = timed(root, [&] {
      import_memory = std::max(import_memory, peak_growth([&] { checkpoint = import_model(source, root); }));
    });
    const double out = timed(back, [&] {
      export_memory = std::max(export_memory, peak_growth([&] { export_model(checkpoint, back); }));
    });
    if (round == 0) continue;  // files are in the page cache from now on, for everybody
    copies.push_back(copy), imports.push_back(in), exports.push_back(out);
    fmt::print("{:.2f} GB: copy {:.2f} GB/s, import {:.2f}, export {:.2f}\n", gigabytes, gigabytes / copy,
               gigabytes / in, gigabytes / out);
  }
  expect_same_files(source, back);

  const int64_t bound = kVocabulary * kHidden * 2 + (int64_t{256} << 20);
  EXPECT_LE(import_memory, bound);
  EXPECT_LE(export_memory, bound);
  const double import_share = median(copies) / median(imports),
               export_share = median(copies) / median(exports);
  fmt::print("of a copy's rate: import {:.0f} %, {} MiB; export {:.0f} %, {} MiB\n", 100 * import_share,
             import_memory >> 20, 100 * export_share, export_memory >> 20);
  EXPECT_GE(import_share, 0.7);
  EXPECT_GE(export_share, 0.7);
}

}  // namespace
}  // namespace megatron
