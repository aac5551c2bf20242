# frozen_string_literal: true

require "json"
require "minitest/autorun"
require "open3"
require "rbconfig"
require "socket"
require "tmpdir"

class TailTest < Minitest::Test
  ROOT = File.expand_path("..", __dir__)
  COMMAND = [RbConfig.ruby, "-I#{ROOT}/lib", "-I#{ROOT}/gen", "#{ROOT}/exe/sessiond-tail"].freeze

  def tail(*arguments)
    Open3.capture3(*COMMAND, *arguments)
  end

  # A daemon that takes calls and answers none, so that a signal comes before there is a subscription.
  def with_a_mute_daemon
    Dir.mktmpdir("sessiond") do |folder|
      UNIXServer.open("#{folder}/s") { |server| yield server, "unix://#{folder}/s" }
    end
  end

  def test_a_signal_before_the_subscription_ends_it_at_once
    %w[INT TERM].each do |name|
      with_a_mute_daemon do |server, address|
        Open3.popen3(*COMMAND, "--address", address, "--session", "s") do |_, out, _, process|
          connection = server.accept
          # Its first bytes: it is in a call, and its traps are set.
          connection.readpartial(24)
          started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
          Process.kill(name, process.pid)
          assert_equal({ "end" => "CANCELLED" }, JSON.parse(out.read))
          assert_equal 0, process.value.exitstatus
          assert_operator Process.clock_gettime(Process::CLOCK_MONOTONIC) - started, :<, 3
          connection.close
        end
      end
    end
  end

  def test_numbers_that_make_no_sense_are_wrong_usage
    ["--count=-3", "--count=0", "--count=x", "--after=-1"].each do |wrong|
      out, err, status = tail("--session", "s", wrong)
      assert_equal [2, ""], [status.exitstatus, out], wrong
      assert_includes err, "usage: tail"
    end
  end

  def test_a_reader_that_left_is_no_crash
    out, writer = IO.pipe
    out.close
    err_reader, err = IO.pipe
    # The line about a daemon that is not there is the first that has nobody to read it.
    process = Process.spawn(*COMMAND, "--session", "s", "--address", "/no/such/socket", out: writer, err:)
    [writer, err].each(&:close)
    assert_equal Signal.list["PIPE"], Process.wait2(process).last.termsig
    assert_empty err_reader.read
  end

  def test_a_bad_address_is_one_line
    out, err, status = tail("--session", "s", "--address", "127.0.0.1:99999")
    assert_equal [2, "", 1], [status.exitstatus, out, err.lines.size]
    assert_includes err, "127.0.0.1:99999"
  end

  def test_an_unreadable_token_file_ends_it
    out, _, status = tail("--session", "s", "--address", "127.0.0.1:1", "--token-file", "/no/such/token")
    assert_equal 1, status.exitstatus
    assert_equal "UNAUTHENTICATED", JSON.parse(out)["end"]
    assert_includes JSON.parse(out)["error"]["message"], "/no/such/token"
  end
end
