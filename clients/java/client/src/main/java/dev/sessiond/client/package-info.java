/**
 * Drives and follows coding-agent sessions hosted by sessiond.
 *
 * <p>{@link dev.sessiond.client.SessiondClient} is where to begin. The messages of the contract are
 * in {@code dev.sessiond.v1}.
 */
package dev.sessiond.client;
