// Tail follows one session and prints a line of JSON per event, across cuts and restarts of the daemon.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/reflect/protoreflect"

	sessiond "sessiond.dev/sessiond/clients/go"
	sessiondv1 "sessiond.dev/sessiond/gen/go/sessiond/v1"
)

type flags struct {
	address, tokenFile, tlsCA string
	session                   string
	create                    bool
	driver, workspace         string
	after                     int64
	send                      string
	count                     int
}

func parse() (*flags, error) {
	f := &flags{}
	here, _ := os.Getwd()
	flag.StringVar(&f.address, "address", "", "unix:///path, host:port or https://host:port")
	flag.StringVar(&f.tokenFile, "token-file", "", "file with the bearer token")
	flag.StringVar(&f.tlsCA, "tls-ca", "", "PEM file to verify a https:// daemon with")
	flag.StringVar(&f.session, "session", "", "session to follow")
	flag.BoolVar(&f.create, "new", false, "create a session and follow it")
	flag.StringVar(&f.driver, "driver", "echo", "driver of the new session")
	flag.StringVar(&f.workspace, "workspace", here, "folder of the new session")
	flag.Int64Var(&f.after, "after", 0, "events after this seq")
	flag.StringVar(&f.send, "send", "", "message to send first")
	flag.IntVar(&f.count, "count", -1, "stop after so many events")
	flag.Parse()
	if flag.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if (f.session != "") == f.create {
		return nil, errors.New("give either --session ID or --new")
	}
	return f, nil
}

// line is what is printed of an event.
type line struct {
	Seq  string `json:"seq"`
	Kind string `json:"kind"`
	Text string `json:"text,omitempty"`
}

func lineOf(event *sessiondv1.Event) line {
	l := line{Seq: strconv.FormatInt(event.GetSeq(), 10), Kind: sessiond.Kind(event)}
	m := event.ProtoReflect()
	if l.Kind == sessiond.UnknownKind {
		return l
	}
	body := m.Get(m.Descriptor().Fields().ByName(protoreflect.Name(l.Kind))).Message()
	for _, name := range []protoreflect.Name{"text", "delta"} {
		if field := body.Descriptor().Fields().ByName(name); field != nil && field.Kind() == protoreflect.StringKind {
			l.Text = body.Get(field).String()
		}
	}
	return l
}

func follow(ctx context.Context, client *sessiond.Client, f *flags, out *json.Encoder) error {
	session := f.session
	if f.create {
		created, err := sessiond.Retry(ctx, client.Sessions.CreateSession,
			&sessiondv1.CreateSessionRequest{Driver: f.driver, Workspace: f.workspace})
		if err != nil {
			return err
		}
		session = created.GetSession().GetSessionId()
	}
	if f.send != "" {
		if _, err := sessiond.Retry(ctx, client.Sessions.Send,
			&sessiondv1.SendRequest{SessionId: session, Text: f.send}); err != nil {
			return err
		}
	}
	if f.count == 0 {
		return errDone
	}
	printed := 0
	for event, err := range client.Subscribe(ctx, session, sessiond.AfterSeq(f.after)).Events() {
		if err != nil {
			return err
		}
		if err := out.Encode(lineOf(event)); err != nil {
			return err
		}
		if printed++; printed == f.count {
			return errDone
		}
	}
	return nil
}

var errDone = errors.New("printed as many events as were asked for")

// end prints the last line and gives the exit code.
func end(err error, out *json.Encoder) int {
	var failure *sessiond.Error
	switch {
	case err == nil:
		_ = out.Encode(map[string]any{"end": "OK"})
	case errors.Is(err, errDone):
		_ = out.Encode(map[string]any{"end": "DONE"})
	case !errors.As(err, &failure):
		fmt.Fprintln(os.Stderr, "tail:", err)
		return 1
	case failure.Code == codes.Canceled:
		_ = out.Encode(map[string]any{"end": "CANCELLED"})
	default:
		name := sessiond.CodeName(failure.Code)
		_ = out.Encode(map[string]any{"end": name, "error": map[string]any{
			"code": name, "reason": failure.Reason, "message": failure.Message, "metadata": failure.Metadata,
		}})
		return 1
	}
	return 0
}

func run() int {
	f, err := parse()
	if err != nil {
		fmt.Fprintln(os.Stderr, "tail:", err)
		flag.Usage()
		return 2
	}
	client, err := sessiond.Dial(sessiond.WithAddress(f.address), sessiond.WithTokenFile(f.tokenFile), sessiond.WithTLSCA(f.tlsCA))
	if err != nil {
		fmt.Fprintln(os.Stderr, "tail:", err)
		return 1
	}
	defer client.Close()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	// A daemon that is not there is told at once, rather than waited for.
	if _, err := client.Server.GetServerInfo(ctx, &sessiondv1.GetServerInfoRequest{}); err != nil {
		return end(err, out)
	}
	return end(follow(ctx, client, f, out), out)
}

func main() { os.Exit(run()) }
