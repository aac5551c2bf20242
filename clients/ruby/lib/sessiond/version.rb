# frozen_string_literal: true

module Sessiond
  VERSION = "0.1.0"
end
