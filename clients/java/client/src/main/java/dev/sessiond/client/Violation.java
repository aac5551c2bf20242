package dev.sessiond.client;

/**
 * A field of a request that the server did not accept.
 *
 * @param field the field, as the proto spells it
 * @param description what is wrong with it
 */
public record Violation(String field, String description) {}
