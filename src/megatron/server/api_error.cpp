#include "megatron/server/api_error.h"

#include "megatron/base/json.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron {
namespace {

const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

}  // namespace

std::string error_body(const ApiError& error) {
  Json detail = Json::object();
  detail["message"] = tokenizers::to_utf8_lossy(error.what());
  detail["type"] = type_of(error.status());
  detail["param"] = error.param().empty() ? Json() : Json(error.param());
  detail["code"] = error.code().empty() ? Json() : Json(error.code());
  Json document = Json::object();
  document["error"] = detail;
  return document.dump();
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response{.status = error.status(), .type = "application/json", .body = error_body(error)};
  if (error.status() == 429 || error.status() == 503) response.headers.emplace_back("Retry-After", "1");
  if (error.status() == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace megatron
