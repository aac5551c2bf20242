package dev.sessiond.client;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class ConnectionTest {
  @TempDir Path folder;

  private Connection resolve(Connection.Builder builder, Map<String, String> more) {
    Map<String, String> environment = new HashMap<>(more);
    environment.putIfAbsent("SESSIOND_RUNTIME_DIR", folder.toString());
    return builder.build(environment::get);
  }

  private Connection discover(Map<String, String> more) {
    return resolve(Connection.newBuilder(), more);
  }

  private void announce(String json) throws IOException {
    Files.writeString(folder.resolve("address.json"), json);
  }

  @Test
  void theRuntimeFolderIsTheFirstThatIsNamed() {
    List<Map.Entry<String, String>> all =
        List.of(
            Map.entry("SESSIOND_RUNTIME_DIR", "/a"),
            Map.entry("XDG_RUNTIME_DIR", "/b"),
            Map.entry("SESSIOND_DATA_DIR", "/c"),
            Map.entry("XDG_DATA_HOME", "/d"),
            Map.entry("HOME", "/e"));
    List<String> folders =
        List.of("/a", "/b/sessiond", "/c/run", "/d/sessiond/run", "/e/.local/share/sessiond/run");
    for (int from = 0; from < all.size(); from++) {
      Map<String, String> environment = new HashMap<>();
      all.subList(from, all.size()).forEach(e -> environment.put(e.getKey(), e.getValue()));
      String found = Connection.newBuilder().build(environment::get).toString();
      assertEquals("unix://" + folders.get(from) + "/sessiond.sock", found);
    }
  }

  @Test
  void anEmptyVariableIsNone() {
    Map<String, String> empty = Map.of("SESSIOND_ADDRESS", "", "SESSIOND_TOKEN", "");
    assertEquals("unix://" + folder + "/sessiond.sock", discover(empty).toString());
  }

  @Test
  void theUnixSocketGoesFirstAndNeedsNoToken() throws IOException {
    announce(
        "{\"unix\": \"unix:/s/x.sock\", \"tcp\": \"h:1\", \"token_file\": \"/t\", \"new\": 1}");
    Connection connection = discover(Map.of("SESSIOND_TOKEN", "t"));
    assertEquals(new Address.Unix(Path.of("/s/x.sock")), connection.address());
    assertEquals(Optional.empty(), connection.token());
  }

  @Test
  void aDiscoveredTcpAddressBringsItsToken() throws IOException {
    announce("{\"tcp\": \"127.0.0.1:1\", \"token_file\": \"/t\"}");
    assertEquals(Optional.of(new Token.File(Path.of("/t"))), discover(Map.of()).token());

    announce("{\"tcp\": \"127.0.0.1:1\"}");
    assertEquals(Optional.empty(), discover(Map.of()).token());
    Path beside = Files.writeString(folder.resolve("token"), "secret\n");
    assertEquals(Optional.of(new Token.File(beside)), discover(Map.of()).token());
  }

  @Test
  void anAnnouncedAuthorityMeansTls() throws IOException {
    announce("{\"tcp\": \"h:1\", \"tls_ca\": \"/ca.pem\"}");
    Connection connection = discover(Map.of());
    assertEquals(new Address.Tcp("h", 1, true), connection.address());
    assertEquals(Optional.of(Path.of("/ca.pem")), connection.tls().ca());
  }

  @Test
  void whatIsGivenGoesBeforeTheEnvironment() {
    Map<String, String> environment =
        Map.of(
            "SESSIOND_ADDRESS", "localhost:1", "SESSIOND_TOKEN", "e", "SESSIOND_TOKEN_FILE", "/f");
    Connection connection = discover(environment);
    assertEquals("localhost:1", connection.toString());
    assertEquals(Optional.of(new Token.Text("e")), connection.token());

    Connection.Builder given = Connection.newBuilder().address("[::1]:2").tokenFile(Path.of("/g"));
    connection = resolve(given, environment);
    assertEquals("[::1]:2", connection.toString());
    assertEquals(Optional.of(new Token.File(Path.of("/g"))), connection.token());
    assertEquals(Optional.of(new Token.Text("g")), resolve(given.token("g"), environment).token());
  }

  @ParameterizedTest
  @ValueSource(strings = {"example.com", "10.0.0.1", "[2001:db8::1]", "localhost.example.com"})
  void noTokenCrossesTheNetworkInTheClear(String host) {
    Connection.Builder plain = Connection.newBuilder().address(host + ":1").token("secret");
    String said = assertThrows(AddressException.class, () -> resolve(plain, Map.of())).getMessage();
    assertTrue(said.contains("use https://" + host + ":1"), said);
    Connection.Builder tls = Connection.newBuilder().address("https://" + host + ":1").token("s");
    assertDoesNotThrow(() -> resolve(tls, Map.of()));
    assertDoesNotThrow(() -> resolve(Connection.newBuilder().address(host + ":1"), Map.of()));
  }

  @ParameterizedTest
  @ValueSource(strings = {"localhost", "127.3.2.1", "[::1]"})
  void aTokenMayGoToThisMachine(String host) {
    Connection.Builder builder = Connection.newBuilder().address(host + ":1").token("secret");
    assertEquals(host + ":1", resolve(builder, Map.of()).toString());
  }

  @ParameterizedTest
  @ValueSource(
      strings = {"localhost", "unix:", "host:port", "https://host", "h:1/path", "h p:1", "", "h:0"})
  void anAddressThatIsNoneSaysHowToWriteOne(String text) {
    String said = assertThrows(AddressException.class, () -> Address.parse(text)).getMessage();
    assertTrue(said.contains("write unix:///path, host:port or https://host:port"), said);
  }

  @ParameterizedTest
  @ValueSource(strings = {"unix:///s", "unix:/s", "/s"})
  void aSocketIsWrittenInThreeWays(String text) {
    assertEquals(new Address.Unix(Path.of("/s")), Address.parse(text));
  }

  @Test
  void aCertificateNeedsItsKey() {
    Map<String, String> half = Map.of("SESSIOND_TLS_CERT", "/cert.pem");
    String said = assertThrows(AddressException.class, () -> discover(half)).getMessage();
    assertTrue(said.contains("give both"), said);
  }

  @Test
  void aMissingCertificateIsNamed() {
    Connection.Builder builder =
        Connection.newBuilder().address("https://h:1").tlsCa(Path.of("/no/ca.pem"));
    Connection connection = resolve(builder, Map.of());
    String said =
        assertThrows(AddressException.class, () -> SessiondClient.connect(connection)).getMessage();
    assertTrue(said.contains("/no/ca.pem"), said);
  }

  @Test
  void aTokenFileIsReadEachTime() throws IOException {
    Path path = folder.resolve("token");
    Token token = new Token.File(path);
    assertThrows(IOException.class, token::read);
    for (String text : List.of("one", "two")) {
      Files.writeString(path, " " + text + " \n");
      assertEquals(text, token.read());
    }
  }

  @Test
  void noTokenIsPrinted() {
    Connection connection =
        resolve(Connection.newBuilder().address("localhost:1").token("secret"), Map.of());
    assertFalse((connection + " " + connection.token()).contains("secret"));
  }
}
