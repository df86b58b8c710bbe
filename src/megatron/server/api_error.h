#pragma once

#include <string>

#include "megatron/base/error.h"
#include "megatron/server/http.h"

namespace megatron {

// A refusal in the form of OpenAI's error object.
class ApiError : public Error {
 public:
  // `param` names the field at fault, `code` a reason that programs know.
  explicit ApiError(int status, const std::string& message, std::string param = "", std::string code = "")
      : Error(message), status_(status), param_(std::move(param)), code_(std::move(code)) {}

  int status() const { return status_; }
  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }

 private:
  int status_;
  std::string param_, code_;
};

// The path exists, for another method.
class MethodNotAllowed : public ApiError {
 public:
  MethodNotAllowed(const std::string& message, std::string allowed)
      : ApiError(405, message), allowed_(std::move(allowed)) {}
  const std::string& allowed() const { return allowed_; }

 private:
  std::string allowed_;
};

// {"error": {"message", "type", "param", "code"}} as text.
std::string error_body(const ApiError& error);
HttpResponse error_response(const ApiError& error);

}  // namespace megatron
