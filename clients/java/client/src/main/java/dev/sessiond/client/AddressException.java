package dev.sessiond.client;

/**
 * What was given or discovered to connect with can't be used; the message says what to change.
 * Nothing was sent.
 */
public final class AddressException extends IllegalArgumentException {
  private static final long serialVersionUID = 1L;

  AddressException(String message) {
    super(message);
  }

  AddressException(String message, Throwable cause) {
    super(message, cause);
  }
}
