# frozen_string_literal: true

module Sessiond
  # The events of one session: history first, then live, each once and in order. A cut connection is made again behind
  # the scenes and goes on after the last event that was handed over.
  #
  # Use `each` for events, or `each_batch` for whole responses, which is faster in bulk; one reader at a time. It
  # ends when the session is deleted, or raises Sessiond::Error: CANCELLED after `close`, DEADLINE_EXCEEDED after
  # `timeout`, TRANSCRIPT_CHANGED, SEQ_IN_FUTURE, SESSION_NOT_FOUND and so on from the daemon, DATA_LOSS when that
  # sent a gap or a repeat.
  class Subscription
    include Enumerable

    # Three of the daemon's heartbeats.
    WATCHDOG = 45
    MAX_GUESSES = 10

    # The last event handed over: what to store, and to give as `after_seq` later.
    attr_reader :last_seq
    # Belongs to last_seq; empty before the first response.
    attr_reader :transcript_id
    # The newest and the oldest event there was when the last response was sent.
    attr_reader :head_seq, :first_seq
    # How many responses had no events; how many connections were lost and made again.
    attr_reader :heartbeats, :reconnects

    # after_seq:: begins after an event that is known already: a stored last_seq
    # transcript_id:: guards a stored after_seq: the one that was stored with it
    # timeout:: seconds until DEADLINE_EXCEEDED, over all connections together; nil: never
    # watchdog:: seconds of silence that count as a cut connection
    # resume:: false: the first error ends it, whatever it is
    # on_lost:: called with the Error of every connection that was lost and will be made again
    def initialize(client, session_id, after_seq: 0, transcript_id: "", timeout: nil, watchdog: WATCHDOG,
                   resume: true, on_lost: nil)
      @client = client
      @session_id = session_id
      @last_seq = after_seq
      @transcript_id = transcript_id
      @deadline = timeout && (Pace.now + timeout)
      @watchdog = watchdog
      @resume = resume
      @on_lost = on_lost
      @head_seq = @first_seq = @heartbeats = @reconnects = @guesses = 0
      @heard = false
      @pace = Pace.new
      @lock = Mutex.new
      @closing = ConditionVariable.new
    end

    # Whether everything that existed at the last response was handed over.
    def caught_up?
      @heard && @last_seq >= @head_seq
    end

    # Ends the subscription, from any thread; the daemon hears of it at once.
    def close
      @lock.synchronize do
        @closed = true
        @closing.broadcast
        @operation&.cancel
      end
    end

    # Yields the events one by one.
    def each
      return enum_for(:each) unless block_given?

      responses do |response|
        response.events.each do |event|
          take(event)
          yield event
        end
      end
    end

    # Yields the responses as they come, empty ones (heartbeats) too.
    def each_batch
      return enum_for(:each_batch) unless block_given?

      responses do |response|
        bad = response.events.find { |event| !accepts?(event) }
        response.events.replace(response.events.take_while { |event| !event.equal?(bad) }) if bad
        yield response
        take(bad) if bad
      end
    end

    private

    # Moves the bookmark to the event, if that is the next one.
    def accepts?(event)
      fits = event.seq == @last_seq + 1 || (@last_seq.zero? && event.seq == @first_seq)
      @last_seq = event.seq if fits
      fits
    end

    def take(event)
      return if accepts?(event)

      raise Error.new(:DATA_LOSS, "the daemon sent event #{event.seq} after event #{@last_seq}")
    end

    # Yields responses over as many connections as it takes.
    def responses(&)
      loop do
        failure = attempt(&)
        return if failure.nil?

        recover(failure)
      end
    end

    # One connection; returns what ended it, nil for a good end.
    def attempt
      operation = connect
      silence = Watchdog.new(@watchdog) { operation.cancel }
      fresh = true
      operation.execute.each do |response|
        silence.pause
        accept(response, fresh)
        fresh = false
        yield response
        silence.resume
      end
      nil
    rescue *Error::RAISED => e
      silence&.barked? ? Error.new(:UNAVAILABLE, "nothing heard for #{@watchdog} s") : Error.of(e)
    ensure
      silence&.stop
      operation&.cancel
      @lock.synchronize { @operation = nil }
    end

    def connect
      request = V1::SubscribeRequest.new(session_id: @session_id, after_seq: @last_seq,
                                         transcript_id: @transcript_id)
      limit = @deadline ? Time.now + (@deadline - Pace.now) : GRPC::Core::TimeConsts::INFINITE_FUTURE
      @lock.synchronize do
        raise Error.new(:CANCELLED, "the subscription was closed") if @closed

        @operation = @client.sessions.subscribe(request, deadline: limit, metadata: @client.metadata,
                                                         return_op: true)
      end
    end

    def recover(failure)
      raise Error.new(:CANCELLED, "the subscription was closed") if @closed
      raise failure if !@resume || !heals?(failure)

      delay = @pace.next(failure.retry_after)
      @reconnects += 1
      @on_lost&.call(failure)
      wait([delay, @deadline ? @deadline - Pace.now : delay].min)
      return unless @deadline && Pace.now >= @deadline

      raise Error.new(:DEADLINE_EXCEEDED, "the time for the subscription is over")
    end

    def wait(delay)
      @lock.synchronize { @closing.wait(@lock, [delay, 0.001].max) unless @closed }
    end

    def heals?(failure)
      heals = failure.heals(heard: @heard)
      return heals unless heals == :guess

      (@guesses += 1) <= MAX_GUESSES
    end

    # Takes note of where the transcript stands.
    def accept(response, fresh)
      if !@transcript_id.empty? && response.transcript_id != @transcript_id
        raise Error.new(:FAILED_PRECONDITION, "the transcript is #{response.transcript_id}, not #{@transcript_id}",
                        reason: "TRANSCRIPT_CHANGED")
      end
      @transcript_id = response.transcript_id
      @head_seq = response.head_seq
      @first_seq = response.first_seq
      @heard = true
      @guesses = 0
      @heartbeats += 1 if response.events.empty?
      # A daemon that greets and fails, again and again, is not one that does well.
      @pace.reset if response.events.any? || !fresh
    end

    # Barks once after so many seconds without a pause.
    class Watchdog
      def initialize(seconds, &bark)
        @seconds = seconds
        @bark = bark
        @lock = Mutex.new
        @change = ConditionVariable.new
        @due = Pace.now + seconds
        @thread = Thread.new { watch }
      end

      def barked?
        @barked
      end

      def pause
        @due = nil
      end

      def resume
        @due = Pace.now + @seconds
      end

      def stop
        @lock.synchronize do
          @stopped = true
          @change.signal
        end
        @thread.join
      end

      private

      def watch
        @lock.synchronize do
          until @stopped
            due = @due
            if due && Pace.now >= due
              @barked = true
              @bark.call
              return
            end
            @change.wait(@lock, due ? due - Pace.now : @seconds)
          end
        end
      end
    end
    private_constant :Watchdog
  end
end
