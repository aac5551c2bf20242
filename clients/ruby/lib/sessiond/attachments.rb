# frozen_string_literal: true

require "digest"
require "stringio"

module Sessiond
  # Attachments in chunks, both ways: methods of Client.
  module Attachments
    # How much of an attachment travels in one call, in bytes.
    CHUNK = 1024 * 1024

    # Sends a String of bytes or a seekable IO and returns the attachment; its ref goes into send_message.
    #
    # A chunk that met a daemon that was away is sent again. An upload that broke off goes on where the daemon has
    # it when it is given the same upload_id.
    def upload(session_id, content, media_type: "", filename: "", upload_id: nil, chunk: CHUNK,
               timeout: Client::TIMEOUT)
      source = content.is_a?(String) ? StringIO.new(content.b) : content
      digest, size = digest_of(source)
      common = { session_id:, upload_id: upload_id || Sessiond.new_request_id,
                 media_type:, filename: }
      offset = steps_back = 0
      loop do
        source.seek(offset)
        data = source.read([chunk, CHUNK].min) || "".b
        finish = offset + data.bytesize >= size
        ending = finish ? { finish: true, sha256: digest } : {}
        response = Pace.attempts(timeout) do |left|
          write_attachment(timeout: left, offset:, data:, **common, **ending)
        end
        return response.attachment if finish

        offset = response.committed_size
      rescue Error => e
        # What was sent before and never confirmed had arrived after all.
        committed = committed_size(e)
        steps_back += 1
        raise if committed.nil? || committed == offset || committed > size || steps_back > Pace::MAX_ATTEMPTS

        offset = committed
      end
    end

    # Yields an attachment's content piece by piece (or returns it whole without a block) and, at its end, checks that
    # it is what `ref` says. Goes on where it was when the connection is cut.
    def download(session_id, ref)
      unless block_given?
        whole = "".b
        download(session_id, ref) { |data| whole << data }
        return whole
      end

      digest = Digest::SHA256.new
      pace = Pace.new
      offset = failures = 0
      begin
        pieces(session_id, ref, offset).each do |response|
          offset += response.data.bytesize
          failures = 0
          digest << response.data
          yield response.data
        end
      rescue *Error::RAISED => e
        error = Error.of(e)
        raise error if !error.unavailable? || (failures += 1) == Pace::MAX_ATTEMPTS

        sleep(pace.next(error.retry_after))
        retry
      end
      return if digest.hexdigest == ref

      raise Error.new(:DATA_LOSS, "what the daemon sent is not attachment #{ref}", reason: "DIGEST_MISMATCH")
    end

    private

    def pieces(session_id, ref, offset)
      request = V1::ReadAttachmentRequest.new(session_id:, ref:, offset:)
      attachments.read_attachment(request, metadata:)
    end

    def digest_of(source)
      digest = Digest::SHA256.new
      size = 0
      source.rewind
      while (data = source.read(CHUNK))
        digest << data
        size += data.bytesize
      end
      [digest.hexdigest, size]
    end

    def committed_size(error)
      Integer(error.metadata["committed_size"], 10, exception: false) if error.reason == "WRONG_OFFSET"
    end
  end
end
