#pragma once

#include "megatron/checkpoint/torch/pickle_writer.h"
#include "megatron/checkpoint/torch/zip_writer.h"
#include "megatron/tensor/tensor.h"
#include "support/temp_dir.h"

namespace megatron::testing {

// A file as torch.save writes it, of values that are added to `pickle` and tensors among them.
class LegacyFile {
 public:
  PickleWriter pickle;

  void tensor(const Tensor& value) {  // fp32, contiguous
    pickle.global("torch._utils", "_rebuild_tensor_v2");
    pickle.begin_tuple();
    pickle.begin_tuple();
    pickle.text("storage");
    pickle.global("torch", "FloatStorage");
    pickle.text(std::to_string(storages_.size()));
    pickle.text("cuda:0");
    pickle.integer(value.numel());
    pickle.end_tuple();
    pickle.persistent();
    pickle.integer(0);
    for (const Shape& numbers : {value.shape(), value.shape().row_major_strides()}) {
      pickle.begin_tuple();
      for (int64_t number : numbers) pickle.integer(number);
      pickle.end_tuple();
    }
    pickle.boolean(true);
    pickle.json(Json::object());
    pickle.end_tuple();
    pickle.call();
    storages_.push_back(value);
  }

  void write(const std::string& path) {
    std::string archive;
    ZipWriter zip([&](size_t offset, std::span<const std::byte> bytes) {
      archive.resize(std::max(archive.size(), offset + bytes.size()));
      archive.replace(offset, bytes.size(), reinterpret_cast<const char*>(bytes.data()), bytes.size());
    });
    zip.add("model_optim_rng/data.pkl", pickle.finish());
    for (size_t i = 0; i < storages_.size(); ++i)
      zip.add("model_optim_rng/data/" + std::to_string(i),
              {static_cast<const char*>(storages_[i].raw()), storages_[i].bytes()});
    zip.add("model_optim_rng/version", "3\n");
    zip.finish();
    write_text(path, archive);
  }

 private:
  std::vector<Tensor> storages_;
};

}  // namespace megatron::testing
