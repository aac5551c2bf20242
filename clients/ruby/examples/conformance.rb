# frozen_string_literal: true

# Carries out the steps of one conformance document; tests/clients/README.md describes it.

require "json"
require "sessiond"
require_relative "watch"

# The document asks for something that this program does not know.
class Undoable < StandardError; end

class Program
  def initialize(document)
    connection = (document["connection"] || {}).slice("address", "token", "token_file", "tls_ca")
    @client = Sessiond::Client.new(**connection.transform_keys(&:to_sym))
    @steps = document.fetch("steps")
    @results = {}
  end

  def run
    @steps.each do |raw|
      step = resolve(raw)
      started = now
      # Through JSON, so that references find the same shapes everywhere.
      result = JSON.parse(JSON.generate(carry_out(step)))
      @results[step.fetch("id")] = result.merge("elapsed_ms" => ((now - started) * 1000).round)
    end
    Shapes.say("results" => @results)
  end

  private

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  # Puts in place of every "$path" what stands there in the results so far.
  def resolve(value)
    case value
    when Hash then value.transform_values { |item| resolve(item) }
    when Array then value.map { |item| resolve(item) }
    when /\A\$/ then look_up(value[1..])
    else value
    end
  end

  def look_up(path)
    path.split(".").reduce(@results) do |tree, part|
      found = tree.is_a?(Array) ? tree[Integer(part, 10)] : tree[part]
      raise Undoable, "nothing stands at $#{path}" if found.nil?

      found
    end
  end

  def carry_out(step)
    case step.fetch("do")
    when "call" then call(step)
    when "subscribe" then Watch.new(@client, step).run
    when "upload" then caught { upload(step) }
    when "download" then caught { download(step) }
    when "sleep" then sleep(step.fetch("ms") / 1000.0).then { {} }
    else raise Undoable, "unknown action #{step['do'].inspect}"
    end
  end

  def caught
    yield
  rescue Sessiond::Error => e
    { error: Shapes.error(e) }
  end

  def call(step)
    description = [Sessiond::V1::SessionService, Sessiond::V1::AttachmentService, Sessiond::V1::ServerService]
                  .filter_map { |service| service::Service.rpc_descs[step.fetch("method").to_sym] }.first
    if description.nil? || description.server_streamer?
      raise Undoable,
            "no unary call #{step['method'].inspect}"
    end

    request = description.input.decode_json(JSON.generate(step["request"] || {}))
    fields = description.input.descriptor.filter_map do |field|
      value = field.get(request)
      value = value.to_a if value.is_a?(Google::Protobuf::RepeatedField)
      value = value.to_h if value.is_a?(Google::Protobuf::Map)
      [field.name.to_sym, value] unless value.nil?
    end
    name = GRPC::GenericService.underscore(step["method"]).to_sym
    caught do
      response = @client.public_send(Sessiond::Client::NAMES.fetch(name, name), **fields.to_h,
                                     timeout: (step["deadline_ms"] || 30_000) / 1000.0,
                                     retries: step["retry"] || false)
      { response: Shapes.message(response) }
    end
  end

  def upload(step)
    content = Array.new(step.fetch("size")) { |i| i % 251 }.pack("C*")
    stored = @client.upload(step["session_id"], content, media_type: step["media_type"] || "",
                                                         filename: step["filename"] || "",
                                                         chunk: step["chunk_bytes"] || 262_144)
    { ref: stored.ref, size_bytes: stored.size_bytes.to_s }
  end

  def download(step)
    digest = Digest::SHA256.new
    size = chunks = 0
    @client.download(step["session_id"], step["ref"]) do |data|
      digest << data
      size += data.bytesize
      chunks += 1
    end
    { size_bytes: size.to_s, sha256: digest.hexdigest, chunks: }
  end
end

begin
  Program.new(JSON.parse(ARGV.empty? ? $stdin.read : File.read(ARGV.first))).run
rescue Undoable, Sessiond::AddressError, KeyError, JSON::ParserError, ArgumentError, Google::Protobuf::ParseError => e
  warn "conformance: #{e.message}"
  exit 1
end
