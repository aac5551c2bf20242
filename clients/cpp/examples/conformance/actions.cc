#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <thread>

#include "steps.h"

namespace {

namespace v1 = sessiond::v1;
using sessiond::Client;
using Sessions = v1::SessionService::Stub;
using Action = std::function<json::Value(const Client&, const Step&)>;

constexpr std::int64_t kPeriod = 251;
constexpr std::int64_t kDeadlineMs = 30000;
constexpr std::int64_t kChunkBytes = 262144;

template <class Stub, class Request, class Response>
using Method = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Response*);

template <class Request>
Request Asked(const Step& step) {
  Request request;
  const auto value = step.Get("request");
  json::ToMessage(value.is_null() ? json::Value::object() : value, request);
  return request;
}

template <class Stub, class Request, class Response>
Action Once(Method<Stub, Request, Response> method) {
  return [method](const Client& client, const Step& step) {
    const auto deadline = step.Millis("deadline_ms", kDeadlineMs);
    const Response response = client.Call(method, Asked<Request>(step), deadline);
    return json::Value{{"response", json::FromMessage(response)}};
  };
}

template <class Stub, class Request, class Response>
Action Mutation(Method<Stub, Request, Response> method) {
  return [method](const Client& client, const Step& step) {
    if (!step.Flag("retry", false)) {
      return Once(method)(client, step);
    }
    const auto deadline = step.Millis("deadline_ms", kDeadlineMs);
    const Response response = client.Retry(method, Asked<Request>(step), deadline);
    return json::Value{{"response", json::FromMessage(response)}};
  };
}

const std::map<std::string, Action>& Methods() {
  static const std::map<std::string, Action> methods = {
      {"CreateSession", Mutation(&Sessions::CreateSession)},
      {"GetSession", Once(&Sessions::GetSession)},
      {"ListSessions", Once(&Sessions::ListSessions)},
      {"UpdateSession", Mutation(&Sessions::UpdateSession)},
      {"DeleteSession", Mutation(&Sessions::DeleteSession)},
      {"ListEvents", Once(&Sessions::ListEvents)},
      {"Send", Mutation(&Sessions::Send)},
      {"EditMessage", Mutation(&Sessions::EditMessage)},
      {"MoveMessage", Mutation(&Sessions::MoveMessage)},
      {"Unqueue", Mutation(&Sessions::Unqueue)},
      {"Answer", Mutation(&Sessions::Answer)},
      {"Control", Mutation(&Sessions::Control)},
      {"WriteAttachment", Once(&v1::AttachmentService::Stub::WriteAttachment)},
      {"GetAttachment", Once(&v1::AttachmentService::Stub::GetAttachment)},
      {"GetServerInfo", Once(&v1::ServerService::Stub::GetServerInfo)},
  };
  return methods;
}

json::Value Call(const Client& client, const Step& step) {
  const auto name = step.Required("method");
  const auto method = Methods().find(name);
  if (method == Methods().end()) {
    throw Refused("there is no method " + name);
  }
  return method->second(client, step);
}

json::Value UploadContent(const Client& client, const Step& step) {
  std::string content(static_cast<std::size_t>(step.Number("size").value_or(0)), '\0');
  for (std::size_t i = 0; i < content.size(); ++i) {
    content[i] = static_cast<char>(i % kPeriod);
  }
  const auto chunk = step.Number("chunk_bytes").value_or(kChunkBytes);
  sessiond::Upload upload;
  upload.session_id = step.Required("session_id");
  upload.content = content;
  upload.media_type = step.Text("media_type");
  upload.filename = step.Text("filename");
  upload.chunk_bytes = static_cast<std::size_t>(chunk);
  const auto attachment = client.UploadAttachment(upload);
  const auto size = static_cast<std::int64_t>(content.size());
  return {{"ref", attachment.ref()},
          {"size_bytes", std::to_string(attachment.size_bytes())},
          {"chunks", std::max<std::int64_t>(1, (size + chunk - 1) / chunk)}};
}

json::Value DownloadContent(const Client& client, const Step& step) {
  Digest digest;
  std::size_t size = 0;
  int chunks = 0;
  client.DownloadAttachment(step.Required("session_id"), step.Required("ref"),
                            [&](const std::string& chunk) {
                              digest.Add(chunk);
                              size += chunk.size();
                              ++chunks;
                            });
  return {{"size_bytes", std::to_string(size)}, {"sha256", digest.Hex()}, {"chunks", chunks}};
}

json::Value Sleep(const Client&, const Step& step) {
  std::this_thread::sleep_for(step.Millis("ms", 0));
  return json::Value::object();
}

}  // namespace

json::Value Run(const Client& client, const Step& step) {
  static const std::map<std::string, Action> actions = {{"call", Call},
                                                        {"subscribe", Watch},
                                                        {"upload", UploadContent},
                                                        {"download", DownloadContent},
                                                        {"sleep", Sleep}};
  const auto name = step.Required("do");
  const auto action = actions.find(name);
  if (action == actions.end()) {
    throw Refused("there is no action " + name);
  }
  try {
    return action->second(client, step);
  } catch (const sessiond::Error& error) {
    return {{"error", json::FromError(error)}};
  }
}

Digest::Digest() : context_(EVP_MD_CTX_new()) {
  EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_), EVP_sha256(), nullptr);
}

Digest::~Digest() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_)); }

void Digest::Add(const std::string& data) {
  EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), data.data(), data.size());
}

std::string Digest::Hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_), digest.data(), &size);
  std::string text;
  for (unsigned int i = 0; i < size; ++i) {
    text += "0123456789abcdef"[digest[i] >> 4U];
    text += "0123456789abcdef"[digest[i] & 0x0FU];
  }
  return text;
}
