package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sessiond "sessiond.dev/sessiond/clients/go"
	sessiondv1 "sessiond.dev/sessiond/gen/go/sessiond/v1"
)

func queued(seq int64, message, request string) *sessiondv1.Event {
	body := &sessiondv1.MessageQueued{MessageId: message}
	return &sessiondv1.Event{Seq: seq, RequestId: request, Body: &sessiondv1.Event_MessageQueued{MessageQueued: body}}
}

func read(seq int64, message string) *sessiondv1.Event {
	body := &sessiondv1.UserMessage{MessageId: message}
	return &sessiondv1.Event{Seq: seq, Body: &sessiondv1.Event_UserMessage{UserMessage: body}}
}

func text(seq int64, delta string) *sessiondv1.Event {
	body := &sessiondv1.AssistantText{Delta: delta}
	return &sessiondv1.Event{Seq: seq, Body: &sessiondv1.Event_AssistantText{AssistantText: body}}
}

func ended(seq int64, outcome sessiondv1.TurnOutcome) *sessiondv1.Event {
	body := &sessiondv1.TurnEnded{Outcome: outcome}
	return &sessiondv1.Event{Seq: seq, Body: &sessiondv1.Event_TurnEnded{TurnEnded: body}}
}

func TestFoldOfATurn(t *testing.T) {
	running, waiting := &turn{}, map[string]string{}
	retracted := &sessiondv1.Event{Seq: 5, Body: &sessiondv1.Event_Retracted{Retracted: &sessiondv1.Retracted{SinceSeq: 4}}}
	unknown := &sessiondv1.Event{Seq: 7}
	for _, event := range []*sessiondv1.Event{
		queued(1, "m1", "hook-d1"), read(2, "m1"), text(3, "good "), text(4, "bad"), retracted, text(6, "day"), unknown,
	} {
		if got := running.fold(event, waiting); got != nil {
			t.Fatalf("event %d: %+v", event.GetSeq(), got)
		}
	}
	got := running.fold(ended(8, sessiondv1.TurnOutcome_TURN_OUTCOME_COMPLETED), waiting)
	if got == nil || got.Text != "good day" || got.Outcome != "COMPLETED" || len(got.Deliveries) != 1 || got.Deliveries[0] != "d1" {
		t.Fatalf("got %+v", got)
	}
	if len(waiting) != 0 {
		t.Errorf("still waiting: %v", waiting)
	}
}

func TestTurnsOfOthersAreNotAnswered(t *testing.T) {
	running, waiting := &turn{}, map[string]string{}
	for _, event := range []*sessiondv1.Event{
		queued(1, "m1", "somebody-else"), read(2, "m1"), text(3, "hi"), ended(4, sessiondv1.TurnOutcome_TURN_OUTCOME_COMPLETED),
	} {
		if got := running.fold(event, waiting); got != nil {
			t.Fatalf("got %+v", got)
		}
	}
	if len(running.pieces) != 0 {
		t.Error("the next turn begins with words of this one")
	}
}

func TestStateSurvives(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	first, err := openState(path)
	if err != nil || first.Seq != 0 {
		t.Fatal(first, err)
	}
	first.Seq, first.TranscriptID, first.Waiting["m"] = 9007199254740993, "t", "d"
	if err := first.save(); err != nil {
		t.Fatal(err)
	}
	second, err := openState(path)
	if err != nil || second.Seq != 9007199254740993 || second.TranscriptID != "t" || second.Waiting["m"] != "d" {
		t.Fatal(second, err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".webhook-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openState(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a broken file: %v", err)
	}
}

// daemon answers Send as a test says, and counts what restarts it.
type daemon struct {
	sessiondv1.UnimplementedSessionServiceServer
	send     func(*sessiondv1.SendRequest) (*sessiondv1.SendResponse, error)
	restarts atomic.Int32
}

func (d *daemon) Send(_ context.Context, r *sessiondv1.SendRequest) (*sessiondv1.SendResponse, error) {
	return d.send(r)
}

func (d *daemon) Control(_ context.Context, r *sessiondv1.ControlRequest) (*sessiondv1.ControlResponse, error) {
	if r.GetSessionId() != "s1" || r.GetRestart() == nil {
		return nil, status.Errorf(codes.InvalidArgument, "%v", r)
	}
	d.restarts.Add(1)
	return &sessiondv1.ControlResponse{}, nil
}

// exited is how the daemon refuses a message to an agent that is gone.
func exited() error {
	refusal := status.New(codes.FailedPrecondition, "the agent has exited")
	refusal, err := refusal.WithDetails(&errdetails.ErrorInfo{Domain: "sessiond", Reason: "SESSION_EXITED"})
	return errors.Join(err, refusal.Err())
}

func handler(t *testing.T, send func(*sessiondv1.SendRequest) (*sessiondv1.SendResponse, error)) http.Handler {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	serve(t, path, &daemon{send: send})
	return handlerAt(t, path)
}

func serve(t *testing.T, path string, d *daemon) {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	sessiondv1.RegisterSessionServiceServer(server, d)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
}

func handlerAt(t *testing.T, path string) http.Handler {
	t.Helper()
	client, err := sessiond.Dial(sessiond.WithAddress("unix://" + path))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return newHandler(client, "s1")
}

func deliver(h http.Handler, id, body string) *httptest.ResponseRecorder {
	request := httptest.NewRequest(http.MethodPost, "/hook", strings.NewReader(body))
	if id != "" {
		request.Header.Set(deliveryHeader, id)
	}
	recorder := httptest.NewRecorder()
	h.ServeHTTP(recorder, request)
	return recorder
}

func TestADeliveryIsSentUnderItsOwnID(t *testing.T) {
	var attempts atomic.Int32
	h := handler(t, func(r *sessiondv1.SendRequest) (*sessiondv1.SendResponse, error) {
		if r.GetRequestId() != "hook-d1" || r.GetSessionId() != "s1" || r.GetText() != "hello" {
			t.Errorf("got %v", r)
		}
		if attempts.Add(1) == 1 {
			return nil, status.Error(codes.Unavailable, "restarting")
		}
		return &sessiondv1.SendResponse{MessageId: "m1", Seq: 9007199254740993}, nil
	})
	got := deliver(h, "d1", `{"text": "hello"}`)
	var body accepted
	if err := json.Unmarshal(got.Body.Bytes(), &body); err != nil {
		t.Fatal(err)
	}
	if got.Code != http.StatusAccepted || body.MessageID != "m1" || body.Seq != "9007199254740993" || attempts.Load() != 2 {
		t.Errorf("%d %+v after %d attempts", got.Code, body, attempts.Load())
	}
}

func TestWhatCannotBeDeliveredSaysWhetherToTryAgain(t *testing.T) {
	for code, want := range map[codes.Code]int{
		codes.InvalidArgument: 400, codes.AlreadyExists: 409, codes.ResourceExhausted: 429, codes.Internal: 502,
	} {
		h := handler(t, func(*sessiondv1.SendRequest) (*sessiondv1.SendResponse, error) {
			return nil, status.Error(code, "no")
		})
		if got := deliver(h, "d1", `{"text": "hello"}`); got.Code != want {
			t.Errorf("%v: %d", code, got.Code)
		}
	}
}

func TestADaemonThatIsAwayIsWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	h := handlerAt(t, path)
	answered := make(chan *httptest.ResponseRecorder)
	go func() { answered <- deliver(h, "d1", `{"text": "hello"}`) }()
	// Longer than five attempts last.
	time.Sleep(3 * time.Second)
	serve(t, path, &daemon{send: func(*sessiondv1.SendRequest) (*sessiondv1.SendResponse, error) {
		return &sessiondv1.SendResponse{MessageId: "m1"}, nil
	}})
	if got := <-answered; got.Code != http.StatusAccepted {
		t.Errorf("%d: %s", got.Code, got.Body)
	}
}

func TestADaemonThatStaysAwayIsToldWithATime(t *testing.T) {
	t.Parallel()
	start := time.Now()
	got := deliver(handlerAt(t, filepath.Join(t.TempDir(), "s")), "d1", `{"text": "hello"}`)
	if got.Code != http.StatusServiceUnavailable || got.Header().Get("Retry-After") != "5" {
		t.Errorf("%d %v", got.Code, got.Header())
	}
	if took := time.Since(start); took < patience || took > patience+time.Second {
		t.Errorf("after %v", took)
	}
}

func TestAnAgentThatExitedIsRestartedOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	d := &daemon{}
	d.send = func(*sessiondv1.SendRequest) (*sessiondv1.SendResponse, error) {
		if d.restarts.Load() == 0 {
			return nil, exited()
		}
		return &sessiondv1.SendResponse{MessageId: "m1"}, nil
	}
	serve(t, path, d)
	h := handlerAt(t, path)
	var deliveries sync.WaitGroup
	for _, id := range []string{"d1", "d2", "d3"} {
		deliveries.Go(func() {
			if got := deliver(h, id, `{"text": "hello"}`); got.Code != http.StatusAccepted {
				t.Errorf("%s: %d %s", id, got.Code, got.Body)
			}
		})
	}
	deliveries.Wait()
	if d.restarts.Load() != 1 {
		t.Errorf("%d restarts", d.restarts.Load())
	}
}

func TestAnAgentThatStaysDownIsRefused(t *testing.T) {
	h := handler(t, func(*sessiondv1.SendRequest) (*sessiondv1.SendResponse, error) { return nil, exited() })
	if got := deliver(h, "d1", `{"text": "hello"}`); got.Code != http.StatusBadGateway {
		t.Errorf("%d", got.Code)
	}
}

func TestACommandLineThatMakesNoSenseIsRefused(t *testing.T) {
	good := "--callback=http://127.0.0.1:9000/answers"
	if c, err := parseFlags([]string{good}); err != nil || c.callback != "http://127.0.0.1:9000/answers" {
		t.Error(c, err)
	}
	for _, arguments := range [][]string{
		{}, {"--callback=nonsense"}, {"--callback=/answers"}, {"--callback=ftp://host/answers"}, {"--callback=http:///answers"},
		{good, "stray"}, {good, "--no-such-flag"},
	} {
		if _, err := parseFlags(arguments); err == nil {
			t.Errorf("%q was taken", arguments)
		}
	}
}

func TestBadDeliveriesNeverReachTheDaemon(t *testing.T) {
	h := handler(t, func(*sessiondv1.SendRequest) (*sessiondv1.SendResponse, error) {
		t.Error("it did")
		return nil, status.Error(codes.Internal, "")
	})
	for id, body := range map[string]string{"": `{"text": "x"}`, strings.Repeat("x", 124): `{"text": "x"}`, "d": `{`} {
		if got := deliver(h, id, body); got.Code != http.StatusBadRequest {
			t.Errorf("%q %q: %d", id, body, got.Code)
		}
	}
}

func TestAReplyIsPostedUntilItIsTaken(t *testing.T) {
	var posts atomic.Int32
	callback := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if posts.Add(1) < 3 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer callback.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := (poster{callback.URL}).post(ctx, &reply{Text: "x"}); err != nil || posts.Load() != 3 {
		t.Errorf("%v after %d posts", err, posts.Load())
	}
}
