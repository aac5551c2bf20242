# frozen_string_literal: true

require "digest"
require "json"

# What messages, events and errors look like in results.
module Shapes
  module_function

  def say(line)
    $stdout.puts(JSON.generate(line))
    $stdout.flush
  end

  def message(message)
    JSON.parse(message.class.encode_json(message, preserve_proto_fieldnames: true))
  end

  def event(event)
    return {} if event.nil?

    kind = Sessiond.kind(event)
    { seq: event.seq.to_s, kind:, request_id: event.request_id, ignorable: event.ignorable, actor: event.actor,
      body: kind == Sessiond::UNKNOWN_KIND ? {} : message(event[kind]) }
  end

  def error(error)
    shape = { code: error.code, message: error.message, reason: error.reason, metadata: error.metadata,
              violations: error.violations.map(&:to_h) }
    error.retry_after ? shape.merge(retry_delay_ms: (error.retry_after * 1000).round) : shape
  end
end

# One `subscribe` step: what it counts, and when it has seen enough.
class Watch
  def initialize(client, step)
    @step = step
    @until = step["until"] || {}
    @announce = step["announce"] || []
    @seq = @after = Integer(step["after_seq"] || "0", 10)
    @counts = { count: 0, gaps: 0, repeats: 0, text_bytes: 0 }
    @kinds = Hash.new(0)
    @text = Digest::SHA256.new
    @events = []
    options = { after_seq: @after, transcript_id: step["transcript_id"] || "",
                timeout: (step["deadline_ms"] || 60_000) / 1000.0, resume: step.fetch("resume", true) }
    options[:watchdog] = step["watchdog_ms"] / 1000.0 if step["watchdog_ms"]
    @subscription = client.subscribe(step["session_id"], **options)
  end

  def run
    result(end: read ? :DONE : :OK)
  rescue Sessiond::Error => e
    return result(end: :CANCELLED) if @cancelled && e.code == :CANCELLED

    result(end: e.code, error: Shapes.error(e))
  end

  private

  # Reads until it has seen enough (true) or the stream ends.
  def read
    @subscription.each_batch do |response|
      response.events.each do |event|
        take(event)
        return true if enough?(Sessiond.kind(event))
      end
      caught_up = @subscription.caught_up?
      progress(caught_up: true) if caught_up && @announce.delete("caught_up")
      return true if enough? || (caught_up && @until["caught_up"])
    end
    false
  end

  def take(event)
    @counts[:count] += 1
    if event.seq <= @seq
      @counts[:repeats] += 1
    elsif event.seq != @seq + 1 && (@first || !@after.zero?)
      @counts[:gaps] += 1
    end
    @first ||= event.seq
    @seq = event.seq
    @last = event
    @kinds[Sessiond.kind(event)] += 1
    if event.body == :assistant_text
      @text << event.assistant_text.delta
      @counts[:text_bytes] += event.assistant_text.delta.bytesize
    end
    @events << Shapes.event(event) if @counts[:count] <= (@step["keep"] || 0)
    progress(events: @counts[:count]) if @announce.include?(@counts[:count])
    return unless @counts[:count] == @step["cancel_after"]

    @cancelled = true
    @subscription.close
  end

  def enough?(kind = nil)
    (@until["count"] && @counts[:count] >= @until["count"]) ||
      (@until["seq"] && @seq >= Integer(@until["seq"], 10)) ||
      (kind && kind == @until["kind"]) ||
      (@until["heartbeats"] && @subscription.heartbeats >= @until["heartbeats"]) ||
      (@until["reconnects"] && @subscription.reconnects >= @until["reconnects"])
  end

  def progress(what)
    Shapes.say(progress: { step: @step["id"], **what })
  end

  def result(ending)
    found = { **ending, **@counts, last_seq: @seq.to_s, head_seq: @subscription.head_seq.to_s,
                                   first_seq: @subscription.first_seq.to_s, transcript_id: @subscription.transcript_id,
                                   caught_up: @subscription.caught_up?, heartbeats: @subscription.heartbeats,
                                   reconnects: @subscription.reconnects, kinds: @kinds, text_sha256: @text.hexdigest,
                                   last: Shapes.event(@last), events: @events }
    @first ? found.merge(first: @first.to_s) : found
  end
end
