#pragma once

#include <sessiond/client.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include "json.h"

/// The document can't be carried out; the text says why.
struct Refused : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// An object of the document, whose references are resolved.
class Step {
 public:
  explicit Step(json::Value value) : value_(std::move(value)) {}

  /// The value of a key; null when it is not there.
  json::Value Get(const std::string& key) const;

  /// A text; empty when it is not there.
  std::string Text(const std::string& key) const;

  /// A text that must be there.
  std::string Required(const std::string& key) const;

  /// A number, whether it is written as a number or as a text.
  std::optional<std::int64_t> Number(const std::string& key) const;

  bool Flag(const std::string& key, bool otherwise) const;

  std::chrono::milliseconds Millis(const std::string& key, std::int64_t otherwise) const;

  /// An object in the object; an empty one when it is not there.
  Step Part(const std::string& key) const;

 private:
  json::Value value_;
};

/// The value with every `$path` replaced by what stands there in the results so far.
json::Value Resolved(const json::Value& value, const json::Value& results);

/// Carries out one step.
json::Value Run(const sessiond::Client& client, const Step& step);

/// Carries out the action `subscribe`.
json::Value Watch(const sessiond::Client& client, const Step& step);

/// The SHA-256 of what was added, in hexadecimal digits.
class Digest {
 public:
  Digest();
  ~Digest();
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;

  void Add(const std::string& data);
  std::string Hex();

 private:
  void* context_;
};
