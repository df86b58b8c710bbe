#pragma once

#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "megatron/kernels/attention.h"

namespace megatron {

// Which kernel a device took for attention of one shape, for people.
struct AttentionNote {
  std::string shape;  // in words
  bool backward = false;
  std::string kernel;
  std::string refused;  // why the fastest is not asked; "" where it is the one

  std::string line() const;
};

// "2 x 4096 tokens, 32 heads of 128 channels on 8 key heads, causal, bf16"
std::string describe_attention(const AttentionArgs& args);

// One note for each shape and choice; the lengths of packed sequences do not count. Safe to use from several
// threads.
class AttentionNotes {
 public:
  // The texts live as long as the program.
  void add(const AttentionArgs& args, bool backward, std::string_view kernel, std::string_view refused);

  std::vector<AttentionNote> since(size_t count) const;  // all but the first ones
  AttentionNote last(bool backward) const;               // what was added last, new or not

 private:
  // Hashed as bytes, so without padding.
  struct Key {
    const char *kernel, *refused;
    int64_t queries, keys, heads, key_heads, d, dv, batch, window_left, window_right, features;
    double softcap;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const {
      return std::hash<std::string_view>{}({reinterpret_cast<const char*>(&key), sizeof key});
    }
  };

  mutable std::mutex mutex_;
  std::unordered_map<Key, size_t, KeyHash> places_;
  std::vector<AttentionNote> notes_;
  size_t last_[2] = {0, 0};
};

}  // namespace megatron
