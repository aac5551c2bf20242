# frozen_string_literal: true

module Sessiond
  # The time between attempts, in seconds: 0.1, doubling up to 5, spread so that the many clients of a restarted
  # daemon do not return at the same instant.
  class Pace
    FIRST = 0.1
    LIMIT = 5.0
    MAX_ATTEMPTS = 5

    def self.now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    # Calls the block, which gets the seconds left, and again while the daemon is away: at most five times, within
    # `timeout` seconds. The block must be safe to repeat.
    def self.attempts(timeout)
      pace = new
      limit = now + timeout
      (1..).each do |attempt|
        return yield([limit - now, 0.001].max)
      rescue Error => e
        delay = pace.next(e.retry_after)
        raise if !e.unavailable? || attempt == MAX_ATTEMPTS || now + delay >= limit

        sleep(delay)
      end
    end

    def initialize
      reset
    end

    def reset
      @ceiling = FIRST
    end

    def next(asked = nil)
      delay = @ceiling * rand(0.8..1.2)
      @ceiling = [@ceiling * 2, LIMIT].min
      [delay, asked || 0].max
    end
  end
end
