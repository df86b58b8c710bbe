#pragma once

#include <string>

#include "megatron/autotune/machine/gpu_spec.h"
#include "megatron/base/json.h"

namespace megatron::autotune {

// GPUs and the network between them.
struct Cluster {
  std::string name;
  GpuSpec gpu;
  int nodes = 1;
  int gpus_per_node = 8;
  int nvlink_domain = 8;        // GPUs that reach each other through NVLink
  double nic_gbs = 50;          // GB/s that one GPU may send to another domain
  int pod_nodes = 0;            // nodes under one leaf of the network; 0: all
  double oversubscription = 1;  // how much less a GPU gets beyond its pod
  double host_speed = 1;        // of the CPU that launches, against the one of the constants

  int gpus() const { return nodes * gpus_per_node; }
};

// So many GPUs of a kind as their makers ship them.
Cluster cluster_of(const GpuSpec& gpu, int gpus);

// A description as in docs/autotuner.md; an unknown or malformed key gives a ConfigError that begins with
// `origin`.
Cluster parse_cluster(const std::string& yaml, std::string_view origin);
Cluster read_cluster(const std::string& path);

// Ranks of one process group that lie `stride` apart: how many share a domain, and how many domains there
// are.
struct Placement {
  int members = 1;  // of the group in one NVLink domain
  int domains = 1;
};
Placement place_group(const Cluster& cluster, int ranks, int stride);

// GB/s that a group sends out of a domain: its members' NICs there, which add up with the power `rails`.
double network_gbs(const Cluster& cluster, const Placement& placement, double rails);

}  // namespace megatron::autotune
