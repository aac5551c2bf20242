// Package sessiond is the Go client of sessiond, the gRPC service that hosts coding-agent sessions.
//
// Dial finds the daemon (explicit address, environment, or the files it leaves in its runtime folder) and
// gives the generated stubs with deadlines, token and typed errors in place. Subscribe adds what the wire
// alone does not have: a stream that outlives cut connections and restarts of the daemon, without a gap or
// a repeat.
//
//	client, err := sessiond.Dial()
//	if err != nil {
//		return err
//	}
//	defer client.Close()
//	sent, err := sessiond.Retry(ctx, client.Sessions.Send, &sessiondv1.SendRequest{SessionId: id, Text: "hello"})
//	...
//	for event, err := range client.Subscribe(ctx, id).Events() {
//		...
//	}
package sessiond
