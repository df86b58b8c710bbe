#pragma once

#include <functional>

#include "megatron/inference/engine.h"
#include "megatron/server/http_server.h"
#include "megatron/server/service.h"

namespace megatron {

struct ServeOptions {
  HttpOptions http;
  ServiceOptions service;
  double drain_seconds = 30;                         // that answers have to end in, once it is time to stop
  std::function<bool()> is_over;                     // asked every few milliseconds: whether to stop
  std::function<void(int port)> on_ready = nullptr;  // told when requests are taken
};

// Serves an engine on its first rank until is_over() says so, then lets answers end. The other ranks call
// engine.run() alone.
void serve(Engine& engine, ServedModel model, const ServeOptions& options);

}  // namespace megatron
