#pragma once

#include <sessiond/request_id.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace sessiond {

/// A folder of its own, removed at the end.
class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("sessiond-" + NewRequestId())) {
    std::filesystem::create_directory(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string In(const std::string& name) const { return (path_ / name).string(); }

  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
    return In(name);
  }

 private:
  std::filesystem::path path_;
};

}  // namespace sessiond
