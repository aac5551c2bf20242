# frozen_string_literal: true

require "minitest/autorun"
require "sessiond"
require "tmpdir"

# A daemon in this process whose answers a test decides on.
class ClientTest < Minitest::Test
  V1 = Sessiond::V1

  class Fake < V1::SessionService::Service
    attr_accessor :on_send, :on_subscribe

    def send(request = nil, *call)
      return super unless request.is_a?(V1::SendRequest)

      on_send.call(request, *call)
    end

    def subscribe(request, call)
      on_subscribe.call(request, call)
    end
  end

  def setup
    @folder = Dir.mktmpdir("sessiond")
    @fake = Fake.new
    @server = GRPC::RpcServer.new(pool_size: 4, poll_period: 0.1)
    @server.add_http2_port("unix:#{@folder}/s", :this_port_is_insecure)
    @server.handle(@fake)
    @thread = Thread.new { @server.run }
    @server.wait_till_running(5)
    @client = Sessiond::Client.new(address: "unix://#{@folder}/s")
  end

  def teardown
    @client.close
    @server.stop
    @thread.join(5)
    FileUtils.rm_rf(@folder)
  end

  def refusal(code, reason: nil, retry_after: nil)
    details = []
    if reason
      info = Google::Rpc::ErrorInfo.new(reason:, domain: "sessiond", metadata: { "k" => "v" })
      details << Google::Protobuf::Any.pack(info)
    end
    if retry_after
      delay = Google::Protobuf::Duration.new(seconds: retry_after)
      details << Google::Protobuf::Any.pack(Google::Rpc::RetryInfo.new(retry_delay: delay))
    end
    status = Google::Rpc::Status.new(code:, message: "said so", details:)
    GRPC::BadStatus.new_status_exception(code, "said so", "grpc-status-details-bin" => status.to_proto)
  end

  def page(from, last)
    events = (from..last).map { |seq| V1::Event.new(seq:) }
    V1::SubscribeResponse.new(events:, head_seq: last, first_seq: 1, transcript_id: "t")
  end

  def test_errors_are_typed
    @fake.on_send = ->(*) { raise refusal(5, reason: "SESSION_NOT_FOUND", retry_after: 2) }
    error = assert_raises(Sessiond::Error) { @client.send_message(session_id: "s", text: "x") }
    assert_equal [:NOT_FOUND, "SESSION_NOT_FOUND", { "k" => "v" }, 2.0],
                 [error.code, error.reason, error.metadata, error.retry_after]
  end

  def test_a_call_is_repeated_with_one_request_id
    ids = []
    @fake.on_send = lambda do |request, *|
      ids << request.request_id
      raise refusal(14) if ids.size < 3

      V1::SendResponse.new(message_id: "m")
    end
    assert_equal "m", @client.send_message(session_id: "s", text: "x").message_id
    assert_equal 3, ids.size
    assert_equal 1, ids.uniq.size
    refute_empty ids.first
  end

  def test_a_call_does_not_wait_for_what_its_deadline_rules_out
    @fake.on_send = ->(*) { raise refusal(14, reason: "SERVER_DRAINING", retry_after: 60) }
    started = Sessiond::Pace.now
    error = assert_raises(Sessiond::Error) { @client.send_message(session_id: "s", text: "x", timeout: 5) }
    assert_equal "SERVER_DRAINING", error.reason
    assert_operator Sessiond::Pace.now - started, :<, 3
  end

  def test_a_subscription_goes_on_after_its_last_event
    asked = []
    @fake.on_subscribe = lambda do |request, _|
      asked << [request.after_seq, request.transcript_id]
      next [page(request.after_seq + 1, 9)] if asked.size == 3

      Enumerator.new do |out|
        out << page(request.after_seq + 1, request.after_seq + 3)
        raise refusal(14)
      end
    end
    lost = []
    subscription = @client.subscribe("s", on_lost: ->(error) { lost << error.code })
    assert_equal (1..9).to_a, subscription.map(&:seq)
    assert_equal [[0, ""], [3, "t"], [6, "t"]], asked
    assert_equal [2, %i[UNAVAILABLE UNAVAILABLE]], [subscription.reconnects, lost]
    assert_predicate subscription, :caught_up?
  end

  def test_breaking_out_keeps_the_bookmark
    @fake.on_subscribe = ->(*) { [page(1, 2)] }
    subscription = @client.subscribe("s")
    assert_equal 1, subscription.first.seq
    assert_equal 1, subscription.last_seq
  end

  def test_close_from_another_thread_ends_it
    started = Queue.new
    @fake.on_subscribe = lambda do |_, call|
      Enumerator.new do |out|
        out << page(1, 1)
        sleep(0.01) until call.cancelled?
      end
    end
    subscription = @client.subscribe("s")
    closer = Thread.new do
      started.pop
      subscription.close
    end
    error = assert_raises(Sessiond::Error) { subscription.each { started << true } }
    assert_equal :CANCELLED, error.code
    closer.join(5)
  end

  # grpc answers a cancellation with a CallError while it is about to begin or to read.
  def test_close_at_any_moment_ends_it_as_cancelled
    @fake.on_subscribe = lambda do |_, call|
      Enumerator.new do |out|
        seq = 0
        out << page(seq += 1, seq) until call.cancelled?
      end
    end
    ends = Array.new(200) do
      subscription = @client.subscribe("s")
      closer = Thread.new do
        sleep(rand * 0.03)
        subscription.close
      end
      assert_raises(Sessiond::Error) { subscription.each_batch { |response| response } }.code
    ensure
      closer.join
    end
    assert_equal({ CANCELLED: 200 }, ends.tally)
  end

  def test_the_pace_doubles_up_to_five_seconds
    pace = Sessiond::Pace.new
    [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5].each { |ceiling| assert_in_delta ceiling, pace.next, ceiling * 0.2 }
    assert_equal 60, pace.next(60)
    pace.reset
    assert_operator pace.next, :<=, 0.12
  end
end
