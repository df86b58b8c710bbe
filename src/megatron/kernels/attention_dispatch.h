#pragma once

#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "megatron/device/kernel_context.h"
#include "megatron/kernels/attention.h"

namespace megatron {

// The kernel that a device dispatched for attention of one shape, as text.
struct AttentionDispatch {
  std::string shape;  // in words
  bool backward = false;
  std::string kernel;
  std::string refused;  // why cuDNN was not used; "" where it was

  std::string line() const;
};

// "2 x 4096 tokens, 32 heads of head_dim 128 on 8 KV heads, causal, bf16"
std::string describe_attention(const AttentionArgs& args);

// One entry for each shape and kernel; the lengths of packed sequences do not count. Safe to use from several
// threads.
class AttentionDispatchLog {
 public:
  // The texts live as long as the program.
  void add(const AttentionArgs& args, bool backward, std::string_view kernel, std::string_view refused);

  std::vector<AttentionDispatch> since(size_t count) const;  // all but the first ones
  AttentionDispatch last(bool backward) const;               // what was added last, new or not

 private:
  // Hashed as bytes, so without padding.
  struct Key {
    const char *kernel, *refused;
    int64_t queries, keys, heads, kv_heads, d, dv, batch, window_left, window_right, features;
    double softcap;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const {
      return std::hash<std::string_view>{}({reinterpret_cast<const char*>(&key), sizeof key});
    }
  };

  mutable std::mutex mutex_;
  std::unordered_map<Key, size_t, KeyHash> index_;
  std::vector<AttentionDispatch> entries_;
  size_t last_[2] = {0, 0};
};

// Which attention kernels a GPU has dispatched so far, without the first `after`. Empty on other devices.
std::vector<AttentionDispatch> attention_dispatches(const KernelContext& ctx, size_t after = 0);

// The kernels that a device dispatches for one attention. Both passes run: the arguments are those of a real
// call, and its outputs are written.
struct AttentionKernels {
  AttentionDispatch forward, backward;
};
AttentionKernels probe_attention(const KernelContext& ctx, const AttentionBackwardArgs& args);

}  // namespace megatron
