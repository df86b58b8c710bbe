#include "megatron/server/service.h"

#include <algorithm>

#include "megatron/server/api_error.h"
#include "megatron/server/completions.h"
#include "megatron/server/document_ids.h"
#include "megatron/server/openapi.h"
#include "megatron/server/page.h"

namespace megatron {

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    const char other = b.empty() ? '\0' : b[i % b.size()];
    difference |= static_cast<unsigned>(static_cast<uint8_t>(a[i]) ^ static_cast<uint8_t>(other));
  }
  return difference == 0;
}

namespace {

// What stands behind the scheme, whose case does not count; "" where it is another one.
std::string_view bearer_token(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  if (!std::ranges::equal(authorization.substr(0, kScheme.size()), kScheme, {}, lower)) return {};
  authorization.remove_prefix(kScheme.size());
  return authorization.substr(std::min(authorization.find_first_not_of(' '), authorization.size()));
}

}  // namespace

Service::Service(ServedModel model, Backend& backend, ServiceOptions options)
    : model_(std::move(model)),
      backend_(backend),
      options_(std::move(options)),
      metrics_(model_.name),
      shared_{&backend, &metrics_},
      prompts_(model_) {
  shared_.max_requests = options_.max_requests;
  if (model_.created == 0) model_.created = seconds_now();
  if (!model_.vocabulary) model_.prepare();
}

void Service::handle(HttpRequest request, std::shared_ptr<HttpReply> reply) {
  try {
    route(request, reply);
  } catch (const MethodNotAllowed& error) {
    metrics_.refused(error.status());
    HttpResponse response = error_response(error);
    response.headers.emplace_back("Allow", error.allowed() == "GET" ? "GET, HEAD" : error.allowed());
    reply->send(std::move(response));
  } catch (const ApiError& error) {
    metrics_.refused(error.status());
    reply->send(error_response(error));
  } catch (const ConfigError& error) {
    metrics_.refused(400);
    reply->send(error_response(ApiError(400, error.what())));
  } catch (const std::exception& error) {
    metrics_.refused(500);
    reply->send(error_response(ApiError(500, error.what())));
  }
}

void Service::require_key(const HttpRequest& request) const {
  if (options_.api_key.empty()) return;
  if (!equal_in_constant_time(bearer_token(request.authorization), options_.api_key))
    throw ApiError(401, "the API key is missing or wrong; send Authorization: Bearer KEY", "",
                   "invalid_api_key");
}

void Service::route(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  const auto json = [&](const Json& document) { reply->send({.body = document.dump()}); };
  const auto is = [&](std::initializer_list<std::string_view> paths) {
    return std::ranges::find(paths, std::string_view(request.path)) != paths.end();
  };
  const auto allow = [&](std::string_view method) {
    if (request.method != method)
      throw MethodNotAllowed(fmt::format("{} takes {}, not {}", request.path, method, request.method),
                             std::string(method));
  };
  if (is({"/health", "/v1/health", "/ping"})) return allow("GET"), reply->send(health());
  if (is({"/", "/index.html"}))
    return allow("GET"), reply->send({.type = "text/html; charset=utf-8", .body = std::string(page_text())});
  if (is({"/openapi.json"})) return allow("GET"), json(openapi_document(options_.version));
  if (is({"/version"})) {
    allow("GET");
    Json document = Json::object();
    document["version"] = options_.version;
    return json(document);
  }
  require_key(request);
  if (is({"/metrics"}))
    return allow("GET"), reply->send({.type = "text/plain; version=0.0.4; charset=utf-8",
                                      .body = metrics_.text(backend_.stats())});
  if (is({"/v1/models", "/models"})) return allow("GET"), json(models());
  if (request.path == "/v1/models/" + model_.name) return allow("GET"), json(models().at("data")[size_t{0}]);
  const bool completions = is({"/v1/completions", "/completions"});
  const bool chat = is({"/v1/chat/completions", "/chat/completions"});
  if (completions || chat) {
    allow("POST");
    if (draining_) throw ApiError(503, "the server is shutting down");
    return completions ? answer_completions(request.body, reply, model_, constraints_, shared_)
                       : answer_chat_completions(request.body, reply, model_, prompts_, options_.style,
                                                 constraints_, shared_);
  }
  if (is({"/tokenize", "/v1/tokenize"})) return allow("POST"), json(tokenize(request.body));
  if (is({"/detokenize", "/v1/detokenize"})) return allow("POST"), json(detokenize(request.body));
  throw ApiError(404, fmt::format("there is no {}; see /openapi.json", request.path));
}

HttpResponse Service::health() const {
  Json document = Json::object();
  document["status"] = draining_ ? "draining" : "ok";
  return {.status = draining_ ? 503 : 200, .body = document.dump()};
}

Json Service::models() const {
  Json entry = Json::object();
  entry["id"] = model_.name;
  entry["object"] = "model";
  entry["created"] = model_.created;
  entry["owned_by"] = "megatron";
  entry["max_model_len"] = model_.max_length;
  Json document = Json::object();
  document["object"] = "list";
  document["data"] = Json(Json::Array{entry});
  return document;
}

Json Service::tokenize(const std::string& body) const {
  Fields fields(body);
  require_model(fields, model_);
  std::vector<int64_t> tokens;
  if (fields.find("messages")) {
    tokens = prompts_.read(fields, false).tokens;
  } else {
    const std::string text = fields.text("prompt", "");
    fields.required("prompt");
    tokens = model_.encode(text, fields.flag("add_special_tokens", true));
  }
  const bool with_texts = fields.flag("return_token_strs", false);
  fields.refuse_unknown();
  Json ids = Json::array(), texts = Json::array();
  for (int64_t token : tokens) {
    ids.push_back(token);
    if (with_texts) texts.push_back(model_.token_text(token));
  }
  Json document = Json::object();
  document["count"] = uint64_t{tokens.size()};
  document["max_model_len"] = model_.max_length;
  document["tokens"] = ids;
  document["token_strs"] = with_texts ? texts : Json();
  return document;
}

Json Service::detokenize(const std::string& body) const {
  Fields fields(body);
  require_model(fields, model_);
  const Json& list = fields.required("tokens");
  if (!list.is_array()) throw ApiError(400, "tokens: expected an array of integers", "tokens");
  std::vector<TokenId> ids;
  for (int64_t id : token_ids(list, model_.tokenizer.vocab_size(), "tokens"))
    ids.push_back(static_cast<TokenId>(id));
  fields.refuse_unknown();
  Json document = Json::object();
  document["prompt"] = model_.tokenizer.decode(ids);
  return document;
}

}  // namespace megatron
