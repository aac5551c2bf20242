// Webhook is a backend between two services: it takes deliveries of a web hook over HTTP, hands each to a
// sessiond session as a message, and posts what the agent answers to a callback.
//
// Nothing is done twice and nothing is lost, whoever is restarted:
//
//   - A delivery's id is the request_id of its Send. A hook that is delivered again, or a Send that is retried,
//     is the same message.
//   - The seq of the last answer that was posted is kept in a file. After a restart the subscription goes on
//     there; an answer is posted again only when it is not known whether it arrived.
//
// README.md shows a delivery from end to end.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	sessiond "sessiond.dev/sessiond/clients/go"
	sessiondv1 "sessiond.dev/sessiond/gen/go/sessiond/v1"
)

type config struct {
	listen, address, session, driver, workspace, state, callback string
}

// parseFlags reads the command line; what is wrong with it is told now, not with the first answer.
func parseFlags(arguments []string) (config, error) {
	var c config
	here, _ := os.Getwd()
	set := flag.NewFlagSet("webhook", flag.ContinueOnError)
	set.StringVar(&c.listen, "listen", "127.0.0.1:8080", "address for deliveries; port 0 picks a free one")
	set.StringVar(&c.address, "address", "", "the daemon's address (default: it is found)")
	set.StringVar(&c.session, "session", "webhook", "session to drive; created when it does not exist")
	set.StringVar(&c.driver, "driver", "echo", "driver of a new session")
	set.StringVar(&c.workspace, "workspace", here, "workspace of a new session")
	set.StringVar(&c.state, "state", "webhook.json", "file that remembers what was answered")
	set.StringVar(&c.callback, "callback", "", "http or https URL that answers are posted to (required)")
	if err := set.Parse(arguments); err != nil {
		return c, err
	}
	if set.NArg() > 0 {
		return c, fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	callback, err := url.Parse(c.callback)
	if err != nil || callback.Scheme != "http" && callback.Scheme != "https" || callback.Hostname() == "" {
		return c, fmt.Errorf("--callback must be an http or https URL, not %q", c.callback)
	}
	return c, nil
}

func main() {
	c, err := parseFlags(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "webhook:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, c); err != nil {
		fmt.Fprintln(os.Stderr, "webhook:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, c config) error {
	client, err := sessiond.Dial(sessiond.WithAddress(c.address))
	if err != nil {
		return err
	}
	defer client.Close()
	if err := ensureSession(ctx, client, c); err != nil {
		return err
	}
	store, err := openState(c.state)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", c.listen)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           newHandler(client, c.session),
		ReadHeaderTimeout: 10 * time.Second,
	}
	failed := make(chan error, 2)
	go func() { failed <- server.Serve(listener) }()
	go func() { failed <- newFollower(client, c.session, store, poster{url: c.callback}).run(ctx) }()
	slog.Info("ready", "deliveries", fmt.Sprintf("http://%s/hook", listener.Addr()), "session", c.session)

	select {
	case err = <-failed:
	case <-ctx.Done():
		err = nil
	}
	// A delivery that is being handed over may finish; the sender repeats what does not.
	last, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return errors.Join(err, server.Shutdown(last))
}

// ensureSession creates the session unless it exists.
func ensureSession(ctx context.Context, client *sessiond.Client, c config) error {
	_, err := sessiond.Retry(ctx, client.Sessions.CreateSession, &sessiondv1.CreateSessionRequest{
		SessionId: c.session, Driver: c.driver, Workspace: c.workspace, Title: "web hook",
	})
	if sessiond.HasReason(err, sessiondv1.ErrorReason_ERROR_REASON_SESSION_EXISTS) {
		return nil
	}
	return err
}
