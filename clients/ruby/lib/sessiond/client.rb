# frozen_string_literal: true

module Sessiond
  # A connection to one daemon; it may be used from several threads.
  #
  # There is a method for each unary call of the contract, its fields as keywords:
  #
  #   client.answer(session_id: id, question_id: q, answers: ["Yes"])
  #
  # Send is `send_message`, because every Ruby object has a `send`. Besides its fields each takes `timeout:` in
  # seconds. Calls that change something are made again while the daemon is away, at most five times within the
  # timeout and all under one request_id, which is made up when it is not given: the daemon carries the call out
  # once. `retries: false` makes one attempt. All raise Sessiond::Error.
  class Client
    include Attachments

    TIMEOUT = 30
    MAX_RECEIVE = 16 * 1024 * 1024
    NAMES = { send: :send_message }.freeze
    CHANNEL = {
      "grpc.max_receive_message_length" => MAX_RECEIVE,
      "grpc.keepalive_time_ms" => 20_000,
      "grpc.keepalive_timeout_ms" => 10_000,
      "grpc.http2.max_pings_without_data" => 0,
      # A daemon that restarts is back within a second: grpc's own pace is made for the internet.
      "grpc.initial_reconnect_backoff_ms" => 100,
      "grpc.min_reconnect_backoff_ms" => 1000,
      "grpc.max_reconnect_backoff_ms" => 1000,
      # Retries are ours, and so is the connection: closing one client touches no other.
      "grpc.enable_retries" => 0,
      "grpc.use_local_subchannel_pool" => 1
    }.freeze

    # The generated stubs, for what this class does not offer. They raise GRPC::BadStatus and want `metadata`.
    attr_reader :sessions, :attachments, :server, :endpoint

    # Makes a client of the daemon that the arguments name (address, token, token_file, tls_ca, tls_cert, tls_key),
    # or else of the one that Endpoint.discover finds. Nothing is connected before the first call.
    def initialize(timeout: TIMEOUT, **endpoint)
      @endpoint = Endpoint.discover(**endpoint)
      @endpoint.check_token
      @timeout = timeout
      target, @transport = @endpoint.target
      arguments = @transport == :unix ? CHANNEL.merge("grpc.default_authority" => "localhost") : CHANNEL
      credentials = @transport == :tls ? tls : :this_channel_is_insecure
      @channel = GRPC::ClientStub.setup_channel(nil, target, credentials, arguments.dup)
      @sessions = stub(V1::SessionService)
      @attachments = stub(V1::AttachmentService)
      @server = stub(V1::ServerService)
    end

    # Ends the connection and every call on it.
    def close
      @channel.close
    end

    # The events of a session after a seq, history and then live, over any cut: see Subscription.
    def subscribe(session_id, **options)
      Subscription.new(self, session_id, **options)
    end

    # What every call must carry.
    def metadata
      token = @endpoint.current_token unless @transport == :unix
      token ? { "authorization" => "Bearer #{token}" } : {}
    end

    { V1::SessionService => :sessions, V1::AttachmentService => :attachments,
      V1::ServerService => :server }.each do |service, owner|
      service::Service.rpc_descs.each do |rpc, description|
        next if description.server_streamer?

        call = GRPC::GenericService.underscore(rpc.to_s).to_sym
        define_method(NAMES.fetch(call, call)) do |timeout: nil, retries: true, **fields|
          unary(public_send(owner), call, description.input.new(**fields), timeout, retries)
        end
      end
    end

    private

    def unary(stub, call, request, timeout, retries)
      mutating = request.respond_to?(:request_id)
      request.request_id = Sessiond.new_request_id if mutating && retries && request.request_id.empty?
      once = lambda do |seconds|
        stub.public_send(call, request, deadline: Time.now + seconds, metadata:)
      rescue *Error::RAISED => e
        raise Error.of(e)
      end
      timeout ||= @timeout
      mutating && retries ? Pace.attempts(timeout, &once) : once.call(timeout)
    end

    def stub(service)
      service::Stub.new("", nil, channel_override: @channel, timeout: GRPC::Core::TimeConsts::INFINITE_FUTURE)
    end

    def tls
      read = ->(path) { path && File.read(path) }
      GRPC::Core::ChannelCredentials.new(read[@endpoint.tls_ca], read[@endpoint.tls_key],
                                         read[@endpoint.tls_cert])
    rescue SystemCallError => e
      raise AddressError, "the certificate file can't be read: #{e.message}"
    end
  end
end
