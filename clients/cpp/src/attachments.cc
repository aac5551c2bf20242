#include <openssl/evp.h>
#include <sessiond/client.h>

#include <algorithm>
#include <array>
#include <memory>

#include "backoff.h"

namespace sessiond {

namespace {

constexpr std::size_t kMaxChunkBytes = std::size_t{1} << 20U;

class Sha256 {
 public:
  Sha256() { EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr); }

  void Update(std::string_view data) { EVP_DigestUpdate(context_.get(), data.data(), data.size()); }

  std::string Hex() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned int size = 0;
    EVP_DigestFinal_ex(context_.get(), digest.data(), &size);
    std::string text;
    for (unsigned int i = 0; i < size; ++i) {
      text += "0123456789abcdef"[digest[i] >> 4U];
      text += "0123456789abcdef"[digest[i] & 0x0FU];
    }
    return text;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_{EVP_MD_CTX_new(),
                                                                   EVP_MD_CTX_free};
};

}  // namespace

v1::Attachment Client::UploadAttachment(const Upload& upload) const {
  const std::size_t size = std::clamp<std::size_t>(upload.chunk_bytes, 1, kMaxChunkBytes);
  v1::WriteAttachmentRequest request;
  request.set_session_id(upload.session_id);
  request.set_upload_id(NewRequestId());
  Sha256 digest;
  std::size_t offset = 0;
  while (true) {
    const std::string_view chunk = upload.content.substr(offset, size);
    digest.Update(chunk);
    request.set_offset(static_cast<std::int64_t>(offset));
    request.set_data(chunk.data(), chunk.size());
    offset += chunk.size();
    const bool finish = offset == upload.content.size();
    if (finish) {
      request.set_finish(true);
      request.set_sha256(digest.Hex());
      request.set_media_type(upload.media_type);
      request.set_filename(upload.filename);
    }
    v1::WriteAttachmentResponse response;
    RunPatiently(
        [&](grpc::ClientContext& context) {
          return attachments().WriteAttachment(&context, request, &response);
        },
        kDefaultDeadline);
    if (finish) {
      return response.attachment();
    }
  }
}

void Client::DownloadAttachment(const std::string& session_id, const std::string& ref,
                                const std::function<void(const std::string&)>& sink) const {
  v1::ReadAttachmentRequest request;
  request.set_session_id(session_id);
  request.set_ref(ref);
  Sha256 digest;
  detail::Patience patience;
  while (true) {
    grpc::ClientContext context;
    Authenticate(context);
    const auto reader = attachments().ReadAttachment(&context, request);
    v1::ReadAttachmentResponse response;
    while (reader->Read(&response)) {
      patience = {};
      digest.Update(response.data());
      request.set_offset(request.offset() + static_cast<std::int64_t>(response.data().size()));
      sink(response.data());
    }
    const grpc::Status status = reader->Finish();
    if (status.ok()) {
      break;
    }
    patience.WaitOrThrow(Error(status), std::chrono::steady_clock::time_point::max());
  }
  if (digest.Hex() != ref) {
    throw Error(grpc::StatusCode::DATA_LOSS, "the content is not that of " + ref);
  }
}

}  // namespace sessiond
