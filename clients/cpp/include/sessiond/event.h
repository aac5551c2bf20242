#pragma once

#include <sessiond/v1/event.pb.h>

#include <string>

namespace sessiond {

/// What an event says: the name of its body in the proto, `assistant_text` for one, or `unknown`
/// for a body that this version does not know.
std::string Kind(const v1::Event& event);

}  // namespace sessiond
