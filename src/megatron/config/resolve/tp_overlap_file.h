#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// How communication runs beside the GEMMs of four linear layers, from the YAML file of --tp-comm-overlap-cfg:
// qkv_fprop: {method: ring_exchange, aggregate: true}.
struct TpOverlapFile {
  enum class Method {
    unset,          // as the flags say
    none,           // communication runs before or after the GEMM
    ring_exchange,  // blocks of tokens go around the group, one GEMM per block
    bulk,           // the GEMM runs beside communication of another tensor
    pipeline,       // the output is computed and reduce-scattered in `splits` parts
  };
  struct Gemm {
    Method method = Method::unset;
    bool aggregate = false;  // ring_exchange gathers two blocks at a time
    int splits = 4;          // parts of pipeline
  };
  struct Linear {
    Gemm fprop, dgrad, wgrad;
  };
  Linear qkv, proj, fc1, fc2;
  std::vector<std::string> notes;  // fields that have no effect

  // A ConfigError names what is wrong with the file.
  static TpOverlapFile read(const std::string& path);
  static TpOverlapFile parse(const std::string& text, const std::string& origin);
  std::string text() const;  // as parse() takes it

  static constexpr std::array<std::string_view, 4> kLinears{"qkv", "proj", "fc1", "fc2"};
  static constexpr std::array<std::string_view, 3> kPasses{"fprop", "dgrad", "wgrad"};
  Linear& linear(std::string_view name);
  static Gemm& gemm(Linear& linear, std::string_view pass);
  // Inputs of qkv and fc1 are gathered, outputs of proj and fc2 are summed.
  static bool gathers_input(std::string_view linear) { return linear == "qkv" || linear == "fc1"; }
  // Whether `aggregate` of a GEMM acts: where blocks of its input are gathered around a ring.
  static bool can_aggregate(std::string_view linear, std::string_view pass, Method method) {
    return pass == (gathers_input(linear) ? "fprop" : "dgrad") &&
           (method == Method::ring_exchange || method == Method::unset);
  }
  // What a GEMM can do: its methods beside none.
  static std::vector<Method> methods(std::string_view linear, std::string_view pass);
};

std::string_view method_name(TpOverlapFile::Method method);

}  // namespace megatron
