# frozen_string_literal: true

module Sessiond
  # How every call fails.
  class Error < StandardError
    DOMAIN = "sessiond"
    # What grpc raises. A CallError is a call that was cancelled at a moment it did not expect.
    RAISED = [GRPC::BadStatus, GRPC::Core::CallError].freeze
    CODES = GRPC::Core::StatusCodes.constants.to_h do |name|
      [GRPC::Core::StatusCodes.const_get(name), name]
    end.freeze

    # A field of the request that is not acceptable, in the proto's spelling, and why.
    Violation = Struct.new(:field, :description)

    # The gRPC code, a symbol as in the specification: :NOT_FOUND.
    attr_reader :code
    # A name of Sessiond::V1::ErrorReason without its prefix ("SESSION_NOT_FOUND"); a later daemon may send one
    # that this client does not know. Empty: the failure is not of the daemon's making.
    attr_reader :reason
    # Goes with the reason: a Hash of strings.
    attr_reader :metadata
    # An Array of Violation.
    attr_reader :violations
    # Seconds after which the same call may succeed, when the daemon says so.
    attr_reader :retry_after

    def initialize(code, message, reason: "", metadata: {}, violations: [], retry_after: nil)
      super(message)
      @code = code
      @reason = reason
      @metadata = metadata
      @violations = violations
      @retry_after = retry_after
    end

    # Makes an Error of what grpc raises.
    def self.of(status)
      return status if status.is_a?(Error)
      return new(:INTERNAL, status.message) if status.is_a?(GRPC::Core::CallError)

      new(CODES.fetch(status.code, :UNKNOWN), status.details.to_s, **details(status))
    end

    def self.details(status)
      found = {}
      rich = status.metadata["grpc-status-details-bin"] or return found

      Google::Rpc::Status.decode(rich).details.each do |detail|
        case (read = unpack(detail))
        when Google::Rpc::ErrorInfo
          found.update(reason: read.reason, metadata: read.metadata.to_h) if read.domain == DOMAIN
        when Google::Rpc::BadRequest
          found[:violations] = read.field_violations.map { |v| Violation.new(v.field, v.description) }
        when Google::Rpc::RetryInfo
          found[:retry_after] = read.retry_delay.seconds + (read.retry_delay.nanos / 1e9)
        end
      end
      found
    rescue Google::Protobuf::ParseError
      found
    end

    def self.unpack(detail)
      [Google::Rpc::ErrorInfo, Google::Rpc::BadRequest, Google::Rpc::RetryInfo].each do |type|
        return detail.unpack(type) if detail.is(type)
      end
      nil
    end
    private_class_method :details, :unpack

    # Whether the daemon is away, so that the same call may be made again.
    def unavailable?
      code == :UNAVAILABLE
    end

    # Whether a stream that ended so is worth another attempt; :guess when only the transport's name for it
    # says so.
    def heals(heard:)
      return true if unavailable?
      return heard unless retry_after.nil?

      # What transports and proxies call a connection that was cut.
      reason.empty? && %i[INTERNAL UNKNOWN CANCELLED].include?(code) ? :guess : false
    end
  end

  # The address, token or certificate can't be used as given; the text says what to change. No call was made.
  class AddressError < Error
    def initialize(message, code = :INVALID_ARGUMENT)
      super(code, message)
    end
  end
end
