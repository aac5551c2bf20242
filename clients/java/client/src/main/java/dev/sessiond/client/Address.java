package dev.sessiond.client;

import java.net.InetAddress;
import java.net.URI;
import java.net.URISyntaxException;
import java.net.UnknownHostException;
import java.nio.file.Path;
import java.util.Locale;

/** A parsed address: a unix socket, or a host and port with or without TLS. */
sealed interface Address {

  /** A unix socket. */
  record Unix(Path path) implements Address {}

  /** A host and port. */
  record Tcp(String host, int port, boolean tls) implements Address {

    /** Whether what is sent there can be read on the way. */
    boolean exposes() {
      return !tls && !isLoopback();
    }

    /** The host and port as they are written, IPv6 in brackets. */
    String authority() {
      return (host.contains(":") ? "[" + host + "]" : host) + ":" + port;
    }

    private boolean isLoopback() {
      if (host.equals("localhost")) {
        return true;
      }
      // Only what is a number already: looking up a name would ask the network.
      boolean number = host.contains(":") || host.matches("[0-9.]+");
      try {
        return number && InetAddress.getByName(host).isLoopbackAddress();
      } catch (UnknownHostException odd) {
        return false;
      }
    }
  }

  /** Parses an address; throws AddressException when it is none. */
  static Address parse(String text) {
    if (text.startsWith("/")) {
      return new Unix(Path.of(text));
    }
    if (text.startsWith("unix:")) {
      String path = text.substring("unix:".length());
      path = path.startsWith("//") ? path.substring(2) : path;
      if (path.isEmpty()) {
        throw noAddress(text);
      }
      return new Unix(Path.of(path));
    }
    boolean tls = text.toLowerCase(Locale.ROOT).startsWith("https://");
    String authority = text.replaceFirst("^(?i:https?://)", "").replaceFirst("/+$", "");
    try {
      URI uri = new URI("tcp://" + authority).parseServerAuthority();
      boolean whole = uri.getPort() > 0 && uri.getPort() < 65536 && uri.getUserInfo() == null;
      if (!whole || !uri.getPath().isEmpty() || uri.getQuery() != null) {
        throw noAddress(text);
      }
      String host = uri.getHost();
      boolean bracketed = host.startsWith("[");
      return new Tcp(bracketed ? host.substring(1, host.length() - 1) : host, uri.getPort(), tls);
    } catch (URISyntaxException e) {
      throw noAddress(text);
    }
  }

  private static AddressException noAddress(String text) {
    return new AddressException(
        "\"" + text + "\" is no address: write unix:///path, host:port or https://host:port");
  }
}
