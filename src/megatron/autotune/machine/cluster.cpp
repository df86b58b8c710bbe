#include "megatron/autotune/machine/cluster.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "megatron/base/error.h"
#include "megatron/base/text_file.h"
#include "megatron/config/sources/yaml.h"

namespace megatron::autotune {
namespace {

double positive(const Json& value, std::string_view origin, std::string_view key, double most) {
  if (!value.is_number() || !(value.as_double() > 0) || value.as_double() > most)
    throw ConfigError(fmt::format("{}: {}: needs a number above 0 and at most {:g} (got {})", origin, key,
                                  most, value.dump()));
  return value.as_double();
}

int count(const Json& value, std::string_view origin, std::string_view key, int least) {
  if (!value.is_int() || value.as_int() < least || value.as_int() > 1'000'000)
    throw ConfigError(fmt::format("{}: {}: needs a whole number from {} to 1000000 (got {})", origin, key,
                                  least, value.dump()));
  return static_cast<int>(value.as_int());
}

// A name, or a mapping with `name` and what differs from the data sheet of `like`.
GpuSpec parse_gpu(const Json& value, std::string_view origin) {
  if (value.is_string()) return gpu_spec(value.as_string());
  if (!value.is_object())
    throw ConfigError(fmt::format("{}: gpu: needs a name or a mapping (got {})", origin, value.type_name()));
  GpuSpec spec;
  if (const Json* like = value.find("like")) spec = gpu_spec(like->as_string());
  for (const auto& [key, field] : value.as_object()) {
    const std::string place = "gpu." + key;
    if (key == "like") continue;
    if (key == "name") {
      if (!field.is_string()) throw ConfigError(fmt::format("{}: gpu.name: needs a text", origin));
      spec.name = field.as_string();
    } else if (key == "tflops16") {
      spec.tflops16 = positive(field, origin, place, 1e6);
    } else if (key == "tflops8") {
      spec.tflops8 = positive(field, origin, place, 1e6);
    } else if (key == "tflops4") {
      spec.tflops4 = positive(field, origin, place, 1e6);
    } else if (key == "memory_gib") {
      spec.memory_gib = positive(field, origin, place, 1e6);
    } else if (key == "memory_tbs") {
      spec.memory_tbs = positive(field, origin, place, 1e4);
    } else if (key == "nvlink_gbs") {
      spec.nvlink_gbs = positive(field, origin, place, 1e6);
    } else if (key == "host_gbs") {
      spec.host_gbs = positive(field, origin, place, 1e6);
    } else if (key == "sms") {
      spec.sms = count(field, origin, place, 1);
    } else {
      throw ConfigError(
          fmt::format("{}: {}: is no key of a GPU (name, like, tflops16, tflops8, tflops4, memory_gib, "
                      "memory_tbs, nvlink_gbs, host_gbs, sms)",
                      origin, place));
    }
  }
  if (spec.tflops16 <= 0 || spec.memory_gib <= 0 || spec.memory_tbs <= 0 || spec.nvlink_gbs <= 0 ||
      spec.sms <= 0)
    throw ConfigError(
        fmt::format("{}: gpu: tflops16, memory_gib, memory_tbs, nvlink_gbs and sms must be given; or "
                    "give like: H100",
                    origin));
  return spec;
}

}  // namespace

Cluster cluster_of(const GpuSpec& gpu, int gpus) {
  Cluster cluster;
  cluster.name = fmt::format("{} x {}", gpus, gpu.name);
  cluster.gpu = gpu;
  cluster.nvlink_domain = gpu.nvlink_domain;
  // The racks of 64 and more are made of trays of four.
  cluster.gpus_per_node = std::min(gpus, gpu.nvlink_domain > 8 ? 4 : 8);
  cluster.nodes = std::max(1, gpus / cluster.gpus_per_node);
  cluster.nic_gbs = gpu.nic_gbs;
  return cluster;
}

Cluster parse_cluster(const std::string& yaml, std::string_view origin) {
  const Json document = parse_yaml(yaml, origin);
  if (!document.is_object())
    throw ConfigError(fmt::format("{}: needs a mapping (got {})", origin, document.type_name()));
  const Json* gpu = document.find("gpu");
  if (gpu == nullptr) throw ConfigError(fmt::format("{}: gpu is missing; give gpu: H100", origin));
  Cluster cluster;
  cluster.gpu = parse_gpu(*gpu, origin);
  cluster.name = cluster.gpu.name;
  cluster.nvlink_domain = cluster.gpu.nvlink_domain;
  cluster.nic_gbs = cluster.gpu.nic_gbs > 0 ? cluster.gpu.nic_gbs : 50;
  for (const auto& [key, value] : document.as_object()) {
    if (key == "gpu") continue;
    if (key == "name" && value.is_string())
      cluster.name = value.as_string();
    else if (key == "nodes")
      cluster.nodes = count(value, origin, key, 1);
    else if (key == "gpus_per_node")
      cluster.gpus_per_node = count(value, origin, key, 1);
    else if (key == "nvlink_domain")
      cluster.nvlink_domain = count(value, origin, key, 1);
    else if (key == "nic_gbs")
      cluster.nic_gbs = positive(value, origin, key, 1e6);
    else if (key == "pod_nodes")
      cluster.pod_nodes = count(value, origin, key, 0);
    else if (key == "oversubscription")
      cluster.oversubscription = positive(value, origin, key, 1e3);
    else if (key == "host_speed")
      cluster.host_speed = positive(value, origin, key, 1e3);
    else
      throw ConfigError(
          fmt::format("{}: {}: is no key of a cluster (name, gpu, nodes, gpus_per_node, nvlink_domain, "
                      "nic_gbs, pod_nodes, oversubscription, host_speed)",
                      origin, key));
  }
  if (int64_t{cluster.nodes} * cluster.gpus_per_node > 1'000'000)
    throw ConfigError(fmt::format("{}: nodes x gpus_per_node: more than 1000000 GPUs", origin));
  return cluster;
}

Cluster read_cluster(const std::string& path) { return parse_cluster(read_text_file(path), path); }

Placement place_group(const Cluster& cluster, int ranks, int stride) {
  Placement placement;
  placement.members = std::clamp(cluster.nvlink_domain / std::max(1, stride), 1, std::max(1, ranks));
  placement.domains = (ranks + placement.members - 1) / placement.members;
  return placement;
}

double network_gbs(const Cluster& cluster, const Placement& placement, double rails) {
  const double rate = cluster.nic_gbs * std::pow(placement.members, rails);
  const int pod_domains = cluster.pod_nodes * cluster.gpus_per_node / std::max(1, cluster.nvlink_domain);
  return pod_domains > 0 && placement.domains > pod_domains ? rate / cluster.oversubscription : rate;
}

}  // namespace megatron::autotune
