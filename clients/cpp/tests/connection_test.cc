#include <gtest/gtest.h>
#include <sessiond/client.h>

#include <map>
#include <vector>

#include "folder.h"
#include "target.h"

namespace sessiond::detail {
namespace {

using Variables = std::map<std::string, std::string>;

class ConnectionTest : public testing::Test {
 protected:
  Target Find(const Connection& connection, Variables variables = {}) const {
    variables.emplace("SESSIOND_RUNTIME_DIR", folder_.In(""));
    return Resolve(connection, [&](const std::string& name) { return variables[name]; });
  }

  Folder folder_;
};

std::string Refusal(const std::function<void()>& attempt) {
  try {
    attempt();
  } catch (const AddressError& error) {
    return error.what();
  }
  return "it was accepted";
}

TEST_F(ConnectionTest, TheRuntimeFolderIsTheFirstThatIsNamed) {
  const std::vector<std::pair<std::string, std::string>> all = {{"SESSIOND_RUNTIME_DIR", "/a"},
                                                                {"XDG_RUNTIME_DIR", "/b"},
                                                                {"SESSIOND_DATA_DIR", "/c"},
                                                                {"XDG_DATA_HOME", "/d"},
                                                                {"HOME", "/e"}};
  const std::vector<std::string> folders = {"/a", "/b/sessiond", "/c/run", "/d/sessiond/run",
                                            "/e/.local/share/sessiond/run"};
  for (std::size_t from = 0; from < all.size(); ++from) {
    Variables variables(all.begin() + static_cast<std::ptrdiff_t>(from), all.end());
    const auto target = Resolve({}, [&](const std::string& name) { return variables[name]; });
    EXPECT_EQ(target.address, "unix://" + folders[from] + "/sessiond.sock");
  }
  EXPECT_THROW(Resolve({}, [](const std::string&) { return ""; }), AddressError);
}

TEST_F(ConnectionTest, TheUnixSocketGoesFirstAndNeedsNoToken) {
  folder_.Write("address.json",
                R"({"unix": "unix:/s/x.sock", "tcp": "h:1", "token_file": "/t", "new": 1})");
  const auto target = Find({}, {{"SESSIOND_TOKEN", "t"}});
  EXPECT_EQ(target.grpc_target, "unix:/s/x.sock");
  EXPECT_EQ(target.token + target.token_file, "");
}

TEST_F(ConnectionTest, ADiscoveredTcpAddressBringsItsToken) {
  folder_.Write("address.json", R"({"tcp": "127.0.0.1:1", "token_file": "/t"})");
  EXPECT_EQ(Find({}).token_file, "/t");
  folder_.Write("address.json", R"({"tcp": "127.0.0.1:1"})");
  EXPECT_EQ(Find({}).token_file, "");
  const auto beside = folder_.Write("token", "secret\n");
  EXPECT_TRUE(std::filesystem::equivalent(Find({}).token_file, beside));
}

TEST_F(ConnectionTest, WhatNoServerWroteIsNothing) {
  folder_.Write("address.json", "{");
  EXPECT_EQ(Find({}).kind, Target::Kind::kUnix);
  folder_.Write("address.json", R"({"tcp": 1, "unix": ""})");
  EXPECT_EQ(Find({}).kind, Target::Kind::kUnix);
}

TEST_F(ConnectionTest, AnAnnouncedAuthorityMeansTls) {
  folder_.Write("address.json", R"({"tcp": "h:1", "tls_ca": "/ca.pem"})");
  const auto target = Find({});
  EXPECT_EQ(target.kind, Target::Kind::kTls);
  EXPECT_EQ(target.grpc_target, "h:1");
  EXPECT_EQ(target.tls_ca, "/ca.pem");
}

TEST_F(ConnectionTest, WhatIsGivenGoesBeforeTheEnvironment) {
  const Variables variables = {
      {"SESSIOND_ADDRESS", "localhost:1"}, {"SESSIOND_TOKEN", "e"}, {"SESSIOND_TOKEN_FILE", "/f"}};
  auto target = Find({}, variables);
  EXPECT_EQ(target.address, "localhost:1");
  EXPECT_EQ(target.token, "e");

  Connection given;
  given.address = "[::1]:2";
  given.token_file = "/g";
  target = Find(given, variables);
  EXPECT_EQ(target.address, "[::1]:2");
  EXPECT_EQ(target.token_file, "/g");
  EXPECT_EQ(target.token, "");

  given.token = "g";
  target = Find(given, variables);
  EXPECT_EQ(target.token, "g");
  EXPECT_EQ(target.token_file, "");
}

TEST_F(ConnectionTest, NoTokenCrossesTheNetworkInTheClear) {
  for (const std::string host :
       {"example.com", "10.0.0.1", "[2001:db8::1]", "localhost.example.com"}) {
    Connection given;
    given.address = host + ":1";
    EXPECT_NO_THROW(Find(given));
    given.token = "secret";
    const auto said = Refusal([&] { Find(given); });
    EXPECT_NE(said.find("use https://" + host + ":1"), std::string::npos) << said;
    given.address = "https://" + host + ":1";
    EXPECT_NO_THROW(Find(given));
  }
  for (const std::string host : {"localhost", "127.3.2.1", "[::1]"}) {
    Connection given;
    given.address = host + ":1";
    given.token = "secret";
    EXPECT_NO_THROW(Find(given));
  }
}

TEST_F(ConnectionTest, AnAddressThatIsNoneSaysHowToWriteOne) {
  for (const std::string text : {"localhost", "unix:", "host:port", "https://host", "h:1/path",
                                 "h p:1", "", "h:0", "h:70000", "[]:1", ":1"}) {
    const auto said = Refusal([&] { ParseAddress(text); });
    EXPECT_NE(said.find("write unix:///path, host:port or https://host:port"), std::string::npos)
        << text << ": " << said;
  }
  for (const std::string text : {"unix:///s", "unix:/s", "/s"}) {
    EXPECT_EQ(ParseAddress(text).grpc_target, "unix:/s");
  }
  EXPECT_EQ(ParseAddress("https://h:5/").grpc_target, "h:5");
}

TEST_F(ConnectionTest, ACertificateNeedsItsKey) {
  Connection given;
  given.address = "https://h:1";
  const auto said = Refusal([&] { Find(given, {{"SESSIOND_TLS_CERT", "/cert.pem"}}); });
  EXPECT_NE(said.find("give both"), std::string::npos) << said;
}

TEST_F(ConnectionTest, AMissingCertificateIsNamed) {
  Connection given;
  given.address = "https://h:1";
  given.tls_ca = "/no/ca.pem";
  const auto said = Refusal([&] { Client{given}; });
  EXPECT_NE(said.find("/no/ca.pem"), std::string::npos) << said;
}

TEST_F(ConnectionTest, ATokenFileIsReadForEveryCall) {
  Connection given;
  given.address = "localhost:1";
  given.token_file = folder_.In("token");
  const Client client(given);
  grpc::ClientContext context;
  EXPECT_THROW(client.Authenticate(context), Error);
  folder_.Write("token", " one \n");
  EXPECT_NO_THROW(client.Authenticate(context));
  std::string token;
  ASSERT_TRUE(ReadStripped(given.token_file, token));
  EXPECT_EQ(token, "one");
}

}  // namespace
}  // namespace sessiond::detail
