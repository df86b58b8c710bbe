#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/config/schema/precision_config.h"

namespace megatron {

// Number formats of single modules, from the YAML file of --te-precision-config-file. Its matchers are asked
// in turn for a module's name, "decoder.layers.0.mlp.linear_fc1"; the first whose pattern fits names one of
// its configs.
class PrecisionRecipe {
 public:
  struct Format {
    bool fp8 = false;  // else the model's own format
    bool blocks = false;
    Fp8Format kind = Fp8Format::e4m3;
    bool of_quantized = true, of_plain = false;  // whether it holds for modules that fp8 would take, or leave

    friend bool operator==(const Format&, const Format&) = default;
  };

  PrecisionRecipe() = default;  // says nothing of any module
  // A ConfigError names what is wrong with the file.
  static PrecisionRecipe read(const std::string& path);
  static PrecisionRecipe parse(const std::string& text, const std::string& origin);

  // What becomes of a module that is in fp8 or not; none: it stays as it is.
  std::optional<Format> of(std::string_view module, bool quantized) const;
  const std::vector<std::string>& notes() const { return notes_; }
  bool may_quantize_plain() const;  // whether a matcher puts modules into fp8 that are not in it

 private:
  struct Matcher {
    std::string pattern;
    Format format;
  };
  std::vector<Matcher> matchers_;
  std::vector<std::string> notes_;
};

// Whether linears may compute in fp8: by --fp8-format, or by --te-precision-config-file alone. A file that
// cannot be read makes none; rules reject it by itself.
bool may_have_fp8_linears(const PrecisionConfig& precision);

// Whether text fits a pattern of *, ? and [sets], as a shell's file names do, slashes and dots included.
bool fits_glob(std::string_view pattern, std::string_view text);

}  // namespace megatron
