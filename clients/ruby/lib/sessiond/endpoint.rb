# frozen_string_literal: true

require "ipaddr"
require "json"

# Where a daemon is found.
module Sessiond
  # Where a daemon is and what it wants to see.
  #
  # address:: unix:///path, host:port or https://host:port
  # token:: the bearer token; wins over token_file. Neither is sent over a unix socket
  # token_file:: holds the token; read again for every call
  # tls_ca:: PEM file that a https:// daemon is verified with; nil: the system's roots
  # tls_cert, tls_key:: the client's own certificate, PEM files, for daemons that ask for one
  Endpoint = Struct.new(:address, :token, :token_file, :tls_ca, :tls_cert, :tls_key, keyword_init: true) do
    # Fills in what is left out: from SESSIOND_ADDRESS, SESSIOND_TOKEN or SESSIOND_TOKEN_FILE, SESSIOND_TLS_CA,
    # SESSIOND_TLS_CERT and SESSIOND_TLS_KEY, else from what the running daemon wrote to its runtime folder.
    def self.discover(env: ENV, **given)
      given = given.reject { |_, value| value.nil? || value.empty? }
      told = ->(name) { Sessiond.value(env[name]) }
      folder = Sessiond.runtime_dir(env)
      served = Sessiond.served(folder)
      found = new(**given)
      found.address ||= told["SESSIOND_ADDRESS"] || Sessiond.served_address(served, folder)
      found.token ||= told["SESSIOND_TOKEN"] unless found.token_file
      unless found.token
        standard = File.join(folder, "token")
        found.token_file ||= told["SESSIOND_TOKEN_FILE"] || served["token_file"] ||
                             (standard if File.exist?(standard))
      end
      found.tls_ca ||= told["SESSIOND_TLS_CA"] || served["tls_ca"]
      found.tls_cert ||= told["SESSIOND_TLS_CERT"]
      found.tls_key ||= told["SESSIOND_TLS_KEY"]
      found
    end

    # The address in grpc's words: [target, :unix | :tcp | :tls]. Raises AddressError.
    def target
      path = address.start_with?("/") ? address : address[%r{\Aunix:(?://)?(.*)\z}m, 1]
      if path
        raise AddressError, "#{address.inspect}: write unix:///absolute/path" unless path.start_with?("/")

        return ["unix:#{path}", :unix]
      end
      match = %r{\A(https?://)?((?:\[[0-9a-fA-F:.]+\]|[^:/\[\]\s]+):\d{1,5})/?\z}.match(address)
      # grpc would take 65537 for 1.
      unless match && match[2][/\d+\z/].to_i.between?(1, 65_535)
        raise AddressError, "#{address.inspect} is no address: write unix:///path, host:port or https://host:port"
      end

      [match[2], match[1] == "https://" ? :tls : :tcp]
    end

    # The token of the next call, nil for none.
    def current_token
      return token if token || !token_file

      held = File.read(token_file).strip
      raise AddressError.new("the token file is empty: #{token_file}", :UNAUTHENTICATED) if held.empty?

      held
    rescue SystemCallError => e
      raise AddressError.new("the token file can't be read: #{e.message}", :UNAUTHENTICATED)
    end

    # Raises AddressError when a token would cross a network in the clear.
    def check_token
      name, transport = target
      return if transport != :tcp || !(token || token_file) || Sessiond.loopback?(name)

      raise AddressError, "the token would cross the network in the clear: write https://#{name}"
    end
  end

  class << self
    # The folder with the daemon's socket, token and address.json: $SESSIOND_RUNTIME_DIR, else
    # $XDG_RUNTIME_DIR/sessiond, else "run" in the data folder.
    def runtime_dir(env = ENV)
      value(env["SESSIOND_RUNTIME_DIR"]) ||
        (value(env["XDG_RUNTIME_DIR"])&.then { |base| File.join(base, "sessiond") }) ||
        File.join(data_dir(env), "run")
    end

    # $SESSIOND_DATA_DIR, else $XDG_DATA_HOME/sessiond, else ~/.local/share/sessiond.
    def data_dir(env = ENV)
      value(env["SESSIOND_DATA_DIR"]) ||
        (value(env["XDG_DATA_HOME"])&.then { |base| File.join(base, "sessiond") }) ||
        File.join(value(env["HOME"]) || Dir.home, ".local", "share", "sessiond")
    end

    # :nodoc:
    def value(text)
      text unless text.nil? || text.empty?
    end

    # :nodoc:
    def served(folder)
      parsed = JSON.parse(File.read(File.join(folder, "address.json")))
      parsed.is_a?(Hash) ? parsed.select { |_, text| text.is_a?(String) && !text.empty? } : {}
    rescue SystemCallError, JSON::ParserError
      {}
    end

    # :nodoc:
    def served_address(served, folder)
      return served["unix"] if served["unix"]

      tcp = served["tcp"] or return "unix://#{File.join(folder, 'sessiond.sock')}"
      served["tls_ca"] && !tcp.include?("://") ? "https://#{tcp}" : tcp
    end

    # :nodoc:
    def loopback?(target)
      host = target.rpartition(":").first.delete("[]")
      host == "localhost" || IPAddr.new(host).loopback?
    rescue IPAddr::Error
      false
    end
  end
end
