# frozen_string_literal: true

require "securerandom"

require "grpc"
require "google/protobuf/well_known_types"
require "google/rpc/error_details_pb"
require "google/rpc/status_pb"
require "sessiond/v1/attachment_service_services_pb"
require "sessiond/v1/error_reason_pb"
require "sessiond/v1/server_service_services_pb"
require "sessiond/v1/session_service_services_pb"

require_relative "sessiond/version"
require_relative "sessiond/errors"
require_relative "sessiond/endpoint"
require_relative "sessiond/pace"
require_relative "sessiond/subscription"
require_relative "sessiond/attachments"
require_relative "sessiond/client"

# Client of sessiond, the gRPC service that hosts AI coding-agent sessions.
#
#   client = Sessiond::Client.new                       # finds the daemon of this user
#   session = client.create_session(driver: "echo", workspace: Dir.pwd).session
#   client.send_message(session_id: session.session_id, text: "hello")
#   client.subscribe(session.session_id).each { |event| p event }
#
# The messages of the contract are in Sessiond::V1.
module Sessiond
  # What Sessiond.kind says of an event whose body this client does not know.
  UNKNOWN_KIND = "unknown"

  # Names an event's body as the contract does: "assistant_text", "tool_started", ...
  def self.kind(event)
    event.body&.to_s || UNKNOWN_KIND
  end

  # A fresh request_id, a random UUID.
  def self.new_request_id
    SecureRandom.uuid
  end
end
