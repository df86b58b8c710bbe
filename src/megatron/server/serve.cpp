#include "megatron/server/serve.h"

#include <atomic>
#include <chrono>
#include <exception>
#include <thread>

namespace megatron {
namespace {

class EngineBackend : public Backend {
 public:
  explicit EngineBackend(Engine& engine) : engine_(engine) {}
  RequestId submit(Request request, RequestListener listener) override {
    return engine_.submit(std::move(request), std::move(listener));
  }
  void cancel(RequestId id) override { engine_.cancel(id); }
  EngineStats stats() const override { return engine_.stats(); }

 private:
  Engine& engine_;
};

}  // namespace

void serve(Engine& engine, ServedModel model, const ServeOptions& options) {
  EngineBackend backend(engine);
  Service service(std::move(model), backend, options.service);
  HttpServer http(options.http, [&](HttpRequest request, std::shared_ptr<HttpReply> reply) {
    service.handle(std::move(request), reply);
  });
  if (options.on_ready) options.on_ready(http.port());
  std::atomic<bool> failed = false;
  std::thread watch([&] {
    while (!options.is_over() && !failed) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    service.drain();
    http.drain(failed ? 1 : options.drain_seconds);  // after a fault, what fails is still told
    engine.stop();  // cancels what is left, so that no reply outlives the server
  });
  std::exception_ptr fault;
  try {
    engine.run();
  } catch (...) {
    fault = std::current_exception();
    failed = true;
  }
  watch.join();
  http.drain(1);  // clients whose answers are cut off get an error first
  if (fault) std::rethrow_exception(fault);
}

}  // namespace megatron
