package sessiond

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	sessiondv1 "sessiond.dev/sessiond/gen/go/sessiond/v1"
)

// fake is a daemon whose answers a test decides on.
type fake struct {
	sessiondv1.UnimplementedSessionServiceServer
	send      func(context.Context, *sessiondv1.SendRequest) (*sessiondv1.SendResponse, error)
	subscribe func(*sessiondv1.SubscribeRequest, grpc.ServerStreamingServer[sessiondv1.SubscribeResponse]) error
}

func (f *fake) Send(ctx context.Context, r *sessiondv1.SendRequest) (*sessiondv1.SendResponse, error) {
	return f.send(ctx, r)
}

func (f *fake) Subscribe(r *sessiondv1.SubscribeRequest, s grpc.ServerStreamingServer[sessiondv1.SubscribeResponse]) error {
	return f.subscribe(r, s)
}

func dialFake(t *testing.T, f *fake) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	sessiondv1.RegisterSessionServiceServer(server, f)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	client, err := Dial(WithAddress("unix://" + path))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func refusal(code codes.Code, reason string, retry time.Duration) error {
	st := status.New(code, "said so")
	var err error
	if reason != "" {
		st, err = st.WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: "sessiond", Metadata: map[string]string{"k": "v"}})
	}
	if err == nil && retry > 0 {
		st, err = st.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(retry)})
	}
	if err != nil {
		panic(err)
	}
	return st.Err()
}

func TestErrorsAreTyped(t *testing.T) {
	client := dialFake(t, &fake{send: func(context.Context, *sessiondv1.SendRequest) (*sessiondv1.SendResponse, error) {
		return nil, refusal(codes.NotFound, "SESSION_NOT_FOUND", time.Second)
	}})
	_, err := client.Sessions.Send(t.Context(), &sessiondv1.SendRequest{})
	var failure *Error
	if !errors.As(err, &failure) {
		t.Fatalf("%T is no *Error", err)
	}
	if failure.Reason != "SESSION_NOT_FOUND" || failure.Metadata["k"] != "v" || *failure.RetryAfter != time.Second {
		t.Errorf("got %+v", failure)
	}
	if !HasReason(err, sessiondv1.ErrorReason_ERROR_REASON_SESSION_NOT_FOUND) || HasReason(err, sessiondv1.ErrorReason_ERROR_REASON_INTERNAL) {
		t.Error("HasReason is wrong")
	}
	if status.Code(err) != codes.NotFound {
		t.Errorf("grpc sees %v", status.Code(err))
	}
}

func TestForeignErrorInfoIsNoReason(t *testing.T) {
	st, err := status.New(codes.Unavailable, "x").WithDetails(&errdetails.ErrorInfo{Reason: "QUOTA", Domain: "gateway.test"})
	if err != nil {
		t.Fatal(err)
	}
	var failure *Error
	if !errors.As(wrap(st.Err()), &failure) || failure.Reason != "" {
		t.Errorf("got %+v", failure)
	}
}

func TestRetryKeepsTheRequestID(t *testing.T) {
	var mu sync.Mutex
	var ids []string
	client := dialFake(t, &fake{send: func(_ context.Context, r *sessiondv1.SendRequest) (*sessiondv1.SendResponse, error) {
		mu.Lock()
		defer mu.Unlock()
		ids = append(ids, r.GetRequestId())
		if len(ids) < 3 {
			return nil, refusal(codes.Unavailable, "", 0)
		}
		return &sessiondv1.SendResponse{MessageId: "m"}, nil
	}})
	sent, err := Retry(t.Context(), client.Sessions.Send, &sessiondv1.SendRequest{Text: "x"})
	if err != nil || sent.GetMessageId() != "m" {
		t.Fatalf("got %v, %v", sent, err)
	}
	if len(ids) != 3 || ids[0] == "" || ids[0] != ids[1] || ids[1] != ids[2] {
		t.Errorf("request ids %q", ids)
	}
}

func TestRetryEndsWithTheDeadline(t *testing.T) {
	client := dialFake(t, &fake{send: func(context.Context, *sessiondv1.SendRequest) (*sessiondv1.SendResponse, error) {
		return nil, refusal(codes.Unavailable, "SERVER_DRAINING", time.Hour)
	}})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	started := time.Now()
	_, err := Retry(ctx, client.Sessions.Send, &sessiondv1.SendRequest{Text: "x"})
	if !HasReason(err, sessiondv1.ErrorReason_ERROR_REASON_SERVER_DRAINING) {
		t.Errorf("got %v", err)
	}
	if time.Since(started) > 2*time.Second {
		t.Error("waited for a delay that the deadline does not allow")
	}
}

func events(from, to int64) *sessiondv1.SubscribeResponse {
	r := &sessiondv1.SubscribeResponse{HeadSeq: to, FirstSeq: 1, TranscriptId: "t"}
	for seq := from; seq <= to; seq++ {
		r.Events = append(r.Events, &sessiondv1.Event{Seq: seq})
	}
	return r
}

func TestSubscribeResumesAfterTheLastEvent(t *testing.T) {
	var asked []*sessiondv1.SubscribeRequest
	client := dialFake(t, &fake{subscribe: func(r *sessiondv1.SubscribeRequest, s grpc.ServerStreamingServer[sessiondv1.SubscribeResponse]) error {
		asked = append(asked, r)
		if len(asked) == 3 {
			return s.Send(events(r.GetAfterSeq()+1, 9))
		}
		_ = s.Send(events(r.GetAfterSeq()+1, r.GetAfterSeq()+3))
		return refusal(codes.Unavailable, "", 0)
	}})
	lost := 0
	sub := client.Subscribe(t.Context(), "s", OnLost(func(*Error) { lost++ }))
	want := int64(1)
	for event, err := range sub.Events() {
		if err != nil {
			t.Fatal(err)
		}
		if event.GetSeq() != want {
			t.Fatalf("event %d instead of %d", event.GetSeq(), want)
		}
		want++
	}
	if want != 10 || sub.Reconnects() != 2 || lost != 2 || !sub.CaughtUp() || sub.TranscriptID() != "t" {
		t.Errorf("ended at %d after %d reconnects, %d told", want, sub.Reconnects(), lost)
	}
	if asked[1].GetAfterSeq() != 3 || asked[2].GetAfterSeq() != 6 || asked[1].GetTranscriptId() != "t" {
		t.Errorf("asked %v", asked)
	}
}

func TestBreakingOutEndsTheStream(t *testing.T) {
	gone := make(chan struct{})
	client := dialFake(t, &fake{subscribe: func(_ *sessiondv1.SubscribeRequest, s grpc.ServerStreamingServer[sessiondv1.SubscribeResponse]) error {
		_ = s.Send(events(1, 2))
		<-s.Context().Done()
		close(gone)
		return s.Context().Err()
	}})
	sub := client.Subscribe(t.Context(), "s")
	for range sub.Events() {
		break
	}
	select {
	case <-gone:
	case <-time.After(5 * time.Second):
		t.Fatal("the server still thinks somebody listens")
	}
	if sub.LastSeq() != 1 {
		t.Errorf("the bookmark is %d, one event was handed over", sub.LastSeq())
	}
}

func TestGivesUpOnEndlessGuesses(t *testing.T) {
	attempts := 0
	client := dialFake(t, &fake{subscribe: func(*sessiondv1.SubscribeRequest, grpc.ServerStreamingServer[sessiondv1.SubscribeResponse]) error {
		attempts++
		return refusal(codes.Internal, "", 0)
	}})
	sub := client.Subscribe(t.Context(), "s")
	// Its first pauses only: the rule is what is tested, not the clock.
	sub.guesses = maxGuesses - 2
	for _, err := range sub.Events() {
		if status.Code(err) != codes.Internal {
			t.Errorf("got %v", err)
		}
	}
	if attempts != 3 {
		t.Errorf("%d attempts", attempts)
	}
}

func TestPace(t *testing.T) {
	p := newPace()
	for _, ceiling := range []time.Duration{100, 200, 400, 800, 1600, 3200, 5000, 5000} {
		ceiling *= time.Millisecond
		if d := p.next(nil); d < ceiling*8/10 || d > ceiling*12/10 {
			t.Errorf("%v is not around %v", d, ceiling)
		}
	}
	asked := time.Minute
	if d := p.next(&asked); d != asked {
		t.Errorf("%v although a minute was asked for", d)
	}
	p.reset()
	if d := p.next(nil); d > 120*time.Millisecond {
		t.Errorf("%v after a reset", d)
	}
}
