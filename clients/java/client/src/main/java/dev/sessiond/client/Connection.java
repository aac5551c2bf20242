package dev.sessiond.client;

import java.nio.file.Path;
import java.util.Optional;
import java.util.function.Function;

/**
 * Where the server is and how to be let in; what is left out is discovered.
 *
 * <p>The address is the first that is there of {@link Builder#address}, {@code SESSIOND_ADDRESS},
 * and what a server of this machine wrote to its runtime folder. The token is the first of {@link
 * Builder#token}, {@link Builder#tokenFile}, {@code SESSIOND_TOKEN}, {@code SESSIOND_TOKEN_FILE},
 * and the token file of that server; a unix socket needs none.
 */
public final class Connection {
  private final Address address;
  private final Optional<Token> token;
  private final Tls tls;

  /** Files that TLS needs. Those of the client itself belong together. */
  record Tls(Optional<Path> ca, Optional<Path> certificate, Optional<Path> key) {}

  private Connection(Builder builder, Discovery discovery) {
    String text = builder.address.orElseGet(discovery::address);
    this.address = Address.parse(text);
    this.token =
        address instanceof Address.Unix
            ? Optional.empty()
            : builder.token.or(() -> builder.tokenFile).or(discovery::token);
    this.tls =
        new Tls(
            builder.ca.or(discovery::tlsCa),
            builder.certificate.or(() -> discovery.file("SESSIOND_TLS_CERT")),
            builder.key.or(() -> discovery.file("SESSIOND_TLS_KEY")));
    if (token.isPresent() && address instanceof Address.Tcp tcp && tcp.exposes()) {
      throw new AddressException(
          "a token would cross the network in the clear to "
              + text
              + ": use https://"
              + tcp.authority());
    }
    if (tls.certificate().isPresent() != tls.key().isPresent()) {
      throw new AddressException(
          "a client certificate needs its key, and the key its certificate: give both");
    }
  }

  /**
   * Discovers everything.
   *
   * @return the connection to the server of this machine, or of the environment
   * @throws AddressException if what was discovered can't be used
   */
  public static Connection discover() {
    return newBuilder().build();
  }

  /**
   * Discovers everything but the address.
   *
   * @param address {@code unix:///path/to/sessiond.sock}, {@code host:port} or {@code
   *     https://host:port}
   * @return the connection
   * @throws AddressException if it is no address, or a token would go there in the clear
   */
  public static Connection to(String address) {
    return newBuilder().address(address).build();
  }

  /**
   * Begins a connection of which some is given.
   *
   * @return a builder
   */
  public static Builder newBuilder() {
    return new Builder();
  }

  Address address() {
    return address;
  }

  Optional<Token> token() {
    return token;
  }

  Tls tls() {
    return tls;
  }

  @Override
  public String toString() {
    if (address instanceof Address.Unix unix) {
      return "unix://" + unix.path();
    }
    Address.Tcp tcp = (Address.Tcp) address;
    return (tcp.tls() ? "https://" : "") + tcp.authority();
  }

  /** Gives what is not to be discovered. */
  public static final class Builder {
    private Optional<String> address = Optional.empty();
    private Optional<Token> token = Optional.empty();
    private Optional<Token> tokenFile = Optional.empty();
    private Optional<Path> ca = Optional.empty();
    private Optional<Path> certificate = Optional.empty();
    private Optional<Path> key = Optional.empty();

    private Builder() {}

    /**
     * Sets the address.
     *
     * @param address {@code unix:///path/to/sessiond.sock}, {@code host:port}, or {@code
     *     https://host:port} for TLS. A token does not go to {@code host:port} unless that is this
     *     machine.
     * @return this
     */
    public Builder address(String address) {
      this.address = Optional.of(address);
      return this;
    }

    /**
     * Sets the bearer token.
     *
     * @param token the token itself
     * @return this
     */
    public Builder token(String token) {
      this.token = Optional.of(new Token.Text(token));
      return this;
    }

    /**
     * Sets the file with the bearer token.
     *
     * @param path read again for every call, so that a new token needs no new client
     * @return this
     */
    public Builder tokenFile(Path path) {
      this.tokenFile = Optional.of(new Token.File(path));
      return this;
    }

    /**
     * Sets the certificates to trust.
     *
     * @param path a PEM file, instead of {@code SESSIOND_TLS_CA}, the one that a server of this
     *     machine announces, or the system's
     * @return this
     */
    public Builder tlsCa(Path path) {
      this.ca = Optional.of(path);
      return this;
    }

    /**
     * Sets the client's own certificate.
     *
     * @param certificate a PEM file, instead of {@code SESSIOND_TLS_CERT}
     * @param key a PEM file (PKCS #8), instead of {@code SESSIOND_TLS_KEY}
     * @return this
     */
    public Builder tlsIdentity(Path certificate, Path key) {
      this.certificate = Optional.of(certificate);
      this.key = Optional.of(key);
      return this;
    }

    /**
     * Discovers the rest.
     *
     * @return the connection
     * @throws AddressException if something given or discovered can't be used
     */
    public Connection build() {
      return build(System::getenv);
    }

    Connection build(Function<String, String> environment) {
      return new Connection(this, new Discovery(environment));
    }
  }
}
