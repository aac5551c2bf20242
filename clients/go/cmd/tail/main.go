// Tail follows one session and prints a line of JSON per event, across cuts and restarts of the daemon.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
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

// flagSet describes the command line, which is read into f.
func (f *flags) flagSet() *flag.FlagSet {
	here, _ := os.Getwd()
	f.count = math.MaxInt
	set := flag.NewFlagSet("tail", flag.ContinueOnError)
	// What is wrong and the help go to different places: run prints both.
	set.SetOutput(io.Discard)
	set.StringVar(&f.address, "address", "", "unix:///path, host:port or https://host:port")
	set.StringVar(&f.tokenFile, "token-file", "", "file with the bearer token")
	set.StringVar(&f.tlsCA, "tls-ca", "", "PEM file to verify a https:// daemon with")
	set.StringVar(&f.session, "session", "", "session to follow")
	set.BoolVar(&f.create, "new", false, "create a session and follow it")
	set.StringVar(&f.driver, "driver", "echo", "driver of the new session")
	set.StringVar(&f.workspace, "workspace", here, "folder of the new session")
	set.Int64Var(&f.after, "after", 0, "events after seq `N`")
	set.StringVar(&f.send, "send", "", "message to send first")
	set.Func("count", "stop after `N` events", func(text string) (err error) {
		f.count, err = strconv.Atoi(text)
		return err
	})
	return set
}

func (f *flags) parse(set *flag.FlagSet, arguments []string) error {
	err := set.Parse(arguments)
	switch {
	case err != nil:
		return err
	case set.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", set.Arg(0))
	case (f.session != "") == f.create:
		return errors.New("give either --session ID or --new")
	case f.after < 0:
		return fmt.Errorf("--after %d: no seq is negative", f.after)
	case f.count < 1:
		return fmt.Errorf("--count %d: it must be 1 or more", f.count)
	}
	return nil
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
		metadata := failure.Metadata
		if metadata == nil {
			// A nil map would be null.
			metadata = map[string]string{}
		}
		_ = out.Encode(map[string]any{"end": name, "error": map[string]any{
			"code": name, "reason": failure.Reason, "message": failure.Message, "metadata": metadata,
		}})
		return 1
	}
	return 0
}

func run() int {
	f := &flags{}
	set := f.flagSet()
	err := f.parse(set, os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		set.SetOutput(os.Stdout)
		set.Usage()
		return 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tail:", err)
		set.SetOutput(os.Stderr)
		set.Usage()
		return 2
	}
	client, err := sessiond.Dial(sessiond.WithAddress(f.address), sessiond.WithTokenFile(f.tokenFile), sessiond.WithTLSCA(f.tlsCA))
	if err != nil {
		fmt.Fprintln(os.Stderr, "tail:", err)
		return 2
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
