#pragma once

#include <string>

namespace sessiond {

/// A random `request_id`, the text of a UUID: the server carries out a call once, however often it
/// comes with the same id and content.
std::string NewRequestId();

}  // namespace sessiond
