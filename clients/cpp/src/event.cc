#include <sessiond/event.h>

namespace sessiond {

std::string Kind(const v1::Event& event) {
  const auto* field = v1::Event::descriptor()->FindFieldByNumber(event.body_case());
  return field == nullptr ? "unknown" : field->name();
}

}  // namespace sessiond
