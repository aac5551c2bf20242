package dev.sessiond.client;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** Where the bearer token comes from. */
sealed interface Token {

  /**
   * Returns the token as it is now.
   *
   * @throws IOException if its file can't be read, or holds nothing
   */
  String read() throws IOException;

  /** The token itself. */
  record Text(String text) implements Token {
    @Override
    public String read() {
      return text.strip();
    }

    @Override
    public String toString() {
      return "Text[...]";
    }
  }

  /** A file, read for every call, so that a new token needs no new client. */
  record File(Path path) implements Token {
    @Override
    public String read() throws IOException {
      String token = Files.readString(path).strip();
      if (token.isEmpty()) {
        throw new IOException(path + " is empty");
      }
      return token;
    }
  }
}
