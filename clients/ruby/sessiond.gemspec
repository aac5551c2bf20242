# frozen_string_literal: true

require_relative "lib/sessiond/version"

Gem::Specification.new do |spec|
  spec.name = "sessiond"
  spec.version = Sessiond::VERSION
  spec.summary = "Client of sessiond, the gRPC service that hosts AI coding-agent sessions"
  spec.description = "Typed calls, errors with reasons, and subscriptions that outlive their connections."
  spec.authors = ["The sessiond authors"]
  spec.homepage = "https://sessiond.dev"
  spec.license = "Apache-2.0"
  spec.required_ruby_version = ">= 3.1"
  spec.metadata["rubygems_mfa_required"] = "true"

  # gen/ is a copy of the generated code that `rake gen` makes: a gem can't reach outside its own folder.
  spec.files = Dir["lib/**/*.rb", "gen/**/*.rb", "exe/*", "README.md", "LICENSE"]
  spec.require_paths = %w[lib gen]
  spec.bindir = "exe"
  spec.executables = ["sessiond-tail"]

  spec.add_dependency "googleapis-common-protos-types", "~> 1.4"
  spec.add_dependency "google-protobuf", ">= 3.21", "< 5"
  spec.add_dependency "grpc", "~> 1.51"
  spec.add_development_dependency "minitest", "~> 5.17"
  spec.add_development_dependency "rake", "~> 13.0"
  spec.add_development_dependency "rubocop", "~> 1.39"
end
