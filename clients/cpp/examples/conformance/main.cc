// Carries out a document of steps and reports what came of each, in JSON: the subject of the
// conformance suite. Its language is described in tests/clients/README.md.

#include <fstream>
#include <iostream>

#include "steps.h"

namespace {

json::Value Read(int argc, char** argv) {
  if (argc < 2) {
    return json::Value::parse(std::cin);
  }
  std::ifstream file(argv[1]);
  if (!file) {
    throw Refused(std::string("can't read ") + argv[1]);
  }
  return json::Value::parse(file);
}

sessiond::Connection Given(const Step& document) {
  const Step part = document.Part("connection");
  sessiond::Connection connection;
  connection.address = part.Text("address");
  connection.token = part.Text("token");
  connection.token_file = part.Text("token_file");
  connection.tls_ca = part.Text("tls_ca");
  return connection;
}

json::Value CarryOut(const json::Value& document) {
  const sessiond::Client client(Given(Step(document)));
  json::Value results = json::Value::object();
  for (const auto& item : document.at("steps")) {
    const Step step(Resolved(item, results));
    const auto started = std::chrono::steady_clock::now();
    json::Value result = Run(client, step);
    const auto elapsed = std::chrono::steady_clock::now() - started;
    result["elapsed_ms"] = std::chrono::duration_cast<std::chrono::milliseconds>(elapsed).count();
    results[step.Required("id")] = std::move(result);
  }
  return {{"results", results}};
}

}  // namespace

int main(int argc, char** argv) {
  try {
    json::Print(CarryOut(Read(argc, argv)));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "conformance: " << error.what() << "\n";
    return 1;
  }
}
