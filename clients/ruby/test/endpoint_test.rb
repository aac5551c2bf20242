# frozen_string_literal: true

require "minitest/autorun"
require "sessiond"
require "tmpdir"

class EndpointTest < Minitest::Test
  Endpoint = Sessiond::Endpoint

  def folder(files = {})
    path = Dir.mktmpdir("sessiond")
    (@folders ||= []) << path
    files.each { |name, text| File.write(File.join(path, name), text) }
    [path, { "SESSIOND_RUNTIME_DIR" => path }]
  end

  def teardown
    @folders&.each { |path| FileUtils.rm_rf(path) }
  end

  def test_the_address_is_the_first_that_is_there
    _, both = folder("address.json" => '{"unix":"unix:/a.sock","tcp":"h:3"}')
    told = both.merge("SESSIOND_ADDRESS" => "h:2")
    assert_equal "h:1", Endpoint.discover(address: "h:1", env: told).address
    assert_equal "h:2", Endpoint.discover(address: "", env: told).address
    assert_equal "unix:/a.sock", Endpoint.discover(env: both).address
    assert_equal "h:3", Endpoint.discover(env: folder("address.json" => '{"tcp":"h:3"}').last).address
    secure = Endpoint.discover(env: folder("address.json" => '{"tcp":"h:3","tls_ca":"/ca"}').last)
    assert_equal ["https://h:3", "/ca"], [secure.address, secure.tls_ca]
    [{}, { "address.json" => "{" }, { "address.json" => '{"unix":1}' }].each do |broken|
      path, env = folder(broken)
      assert_equal "unix://#{path}/sessiond.sock", Endpoint.discover(env:).address
    end
  end

  def test_the_token_is_the_first_that_is_there
    path, env = folder("token" => " x\n")
    assert_nil Endpoint.discover(env: folder.last).token_file
    assert_equal File.join(path, "token"), Endpoint.discover(env:).token_file
    assert_equal "x", Endpoint.discover(env:).current_token
    _, told = folder("token" => "x", "address.json" => '{"token_file":"/told"}')
    assert_equal "/told", Endpoint.discover(env: told).token_file
    assert_equal "/env", Endpoint.discover(env: told.merge("SESSIOND_TOKEN_FILE" => "/env")).token_file
    text = told.merge("SESSIOND_TOKEN" => "text")
    assert_equal ["text", nil], Endpoint.discover(env: text).to_h.values_at(:token, :token_file)
    assert_equal [nil, "/mine"],
                 Endpoint.discover(token_file: "/mine", env: text).to_h.values_at(:token, :token_file)
  end

  def test_the_runtime_folder_is_the_first_that_is_told
    env = { "HOME" => "/home/x", "XDG_RUNTIME_DIR" => "" }
    assert_equal "/home/x/.local/share/sessiond/run", Sessiond.runtime_dir(env)
    env["XDG_DATA_HOME"] = "/xdg"
    assert_equal "/xdg/sessiond/run", Sessiond.runtime_dir(env)
    env["SESSIOND_DATA_DIR"] = "/data"
    assert_equal "/data/run", Sessiond.runtime_dir(env)
    env["XDG_RUNTIME_DIR"] = "/user"
    assert_equal "/user/sessiond", Sessiond.runtime_dir(env)
  end

  def test_addresses
    %w[unix:///a/b unix:/a/b /a/b].each { |text| assert_equal ["unix:/a/b", :unix], Endpoint.new(address: text).target }
    assert_equal ["localhost:7", :tcp], Endpoint.new(address: "http://localhost:7").target
    assert_equal ["h:7", :tls], Endpoint.new(address: "https://h:7/").target
    assert_equal ["[::1]:7", :tcp], Endpoint.new(address: "[::1]:7").target
    ["", "host", "unix:relative", "unix://relative", ":7", "host:", "https://h/x:7", "a b:7", "h:0", "h:65536",
     "https://h:99999", "[::1]:0"].each do |bad|
      assert_raises(Sessiond::AddressError, bad) { Endpoint.new(address: bad).target }
    end
  end

  def test_a_token_stays_on_the_machine_or_is_encrypted
    %w[127.0.0.1:7 [::1]:7 localhost:7 https://example.test:7].each do |address|
      Endpoint.new(address:, token: "secret").check_token
    end
    %w[example.test:7 10.0.0.1:7].each do |address|
      error = assert_raises(Sessiond::AddressError) { Sessiond::Client.new(address:, token: "secret") }
      assert_includes error.message, "https://#{address}"
      refute_includes error.message, "secret"
    end
  end
end
