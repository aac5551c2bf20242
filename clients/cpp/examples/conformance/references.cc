#include "steps.h"

namespace {

json::Value Child(const json::Value& value, const std::string& part) {
  if (value.is_object() && value.contains(part)) {
    return value.at(part);
  }
  const bool number = !part.empty() && part.size() < 10 &&
                      part.find_first_not_of("0123456789") == std::string::npos;
  if (value.is_array() && number && std::stoul(part) < value.size()) {
    return value.at(std::stoul(part));
  }
  throw Refused("there is no \"" + part + "\"");
}

json::Value LookUp(const std::string& path, json::Value value) {
  std::size_t begin = 0;
  while (begin <= path.size()) {
    const auto end = std::min(path.find('.', begin), path.size());
    try {
      value = Child(value, path.substr(begin, end - begin));
    } catch (const Refused& missing) {
      throw Refused("$" + path + ": " + missing.what() + " in the results so far");
    }
    begin = end + 1;
  }
  return value;
}

}  // namespace

json::Value Resolved(const json::Value& value, const json::Value& results) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    return text.rfind('$', 0) == 0 ? LookUp(text.substr(1), results) : value;
  }
  if (!value.is_structured()) {
    return value;
  }
  json::Value resolved = value;
  for (auto& item : resolved) {
    item = Resolved(item, results);
  }
  return resolved;
}

json::Value Step::Get(const std::string& key) const {
  const auto found = value_.find(key);
  return found == value_.end() ? json::Value() : *found;
}

std::string Step::Text(const std::string& key) const {
  const auto value = Get(key);
  return value.is_string() ? value.get<std::string>() : std::string();
}

std::string Step::Required(const std::string& key) const {
  const auto value = Get(key);
  if (!value.is_string()) {
    throw Refused("\"" + key + "\" is missing in " + value_.dump());
  }
  return value.get<std::string>();
}

std::optional<std::int64_t> Step::Number(const std::string& key) const {
  const auto value = Get(key);
  if (value.is_null()) {
    return std::nullopt;
  }
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  try {
    return std::stoll(text);
  } catch (const std::logic_error&) {
    throw Refused(key + ": \"" + text + "\" is no number");
  }
}

bool Step::Flag(const std::string& key, bool otherwise) const {
  const auto value = Get(key);
  return value.is_boolean() ? value.get<bool>() : otherwise;
}

std::chrono::milliseconds Step::Millis(const std::string& key, std::int64_t otherwise) const {
  return std::chrono::milliseconds(Number(key).value_or(otherwise));
}

Step Step::Part(const std::string& key) const {
  const auto value = Get(key);
  return Step(value.is_object() ? value : json::Value::object());
}
