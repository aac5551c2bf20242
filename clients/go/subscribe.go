package sessiond

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sessiondv1 "sessiond.dev/sessiond/gen/go/sessiond/v1"
)

const (
	// Three of the daemon's heartbeats.
	defaultWatchdog = 45 * time.Second
	maxGuesses      = 10
)

var errSilent = errors.New("nothing heard, not even a heartbeat")

// Subscription is the events of one session after a seq: history first, then live, each once and in order.
// A cut connection is made again behind the scenes and goes on after the last event that was handed over.
//
// Read it with Events, or with Batches for whole responses, which are faster in bulk; one reader at a time.
// Its methods tell about what was handed over so far and belong to the reading goroutine.
type Subscription struct {
	client  *Client
	ctx     context.Context
	cancel  context.CancelFunc
	request *sessiondv1.SubscribeRequest
	options subscribeOptions
	pace    *pace

	attempt        *attempt
	guesses        int
	heard          bool
	head, first    int64
	beats, retries int
}

// attempt is one connection of a subscription.
type attempt struct {
	stream   grpc.ServerStreamingClient[sessiondv1.SubscribeResponse]
	cancel   context.CancelCauseFunc
	watchdog *time.Timer
	fresh    bool
}

type subscribeOptions struct {
	afterSeq     int64
	transcriptID string
	once         bool
	watchdog     time.Duration
	onLost       func(*Error)
}

// SubscribeOption changes where a subscription begins and how it heals.
type SubscribeOption func(*subscribeOptions)

// AfterSeq begins after an event that is known already: the LastSeq that was stored. Default 0, everything.
func AfterSeq(seq int64) SubscribeOption { return func(o *subscribeOptions) { o.afterSeq = seq } }

// InTranscript guards a stored seq: give the TranscriptID that was stored with it.
func InTranscript(id string) SubscribeOption {
	return func(o *subscribeOptions) { o.transcriptID = id }
}

// WithoutResume ends the subscription with the first error, whatever it is.
func WithoutResume() SubscribeOption { return func(o *subscribeOptions) { o.once = true } }

// WithWatchdog sets after how long a silence a connection counts as cut. Default 45 s.
func WithWatchdog(silence time.Duration) SubscribeOption {
	return func(o *subscribeOptions) { o.watchdog = silence }
}

// OnLost is called for every connection that was lost and will be made again.
func OnLost(call func(*Error)) SubscribeOption { return func(o *subscribeOptions) { o.onLost = call } }

// Subscribe follows a session. The context's deadline and cancellation end it, over all attempts together;
// nothing is sent before the first read.
func (c *Client) Subscribe(ctx context.Context, sessionID string, options ...SubscribeOption) *Subscription {
	o := subscribeOptions{watchdog: defaultWatchdog}
	for _, option := range options {
		option(&o)
	}
	ctx, cancel := context.WithCancel(ctx)
	request := &sessiondv1.SubscribeRequest{SessionId: sessionID, AfterSeq: o.afterSeq, TranscriptId: o.transcriptID}
	return &Subscription{client: c, ctx: ctx, cancel: cancel, request: request, options: o, pace: newPace()}
}

// Close ends the subscription; the daemon hears of it at once. Reading on gives a CANCELLED error.
func (s *Subscription) Close() { s.cancel() }

// LastSeq is the seq of the last event handed over: what to store, and to give to AfterSeq later.
func (s *Subscription) LastSeq() int64 { return s.request.GetAfterSeq() }

// TranscriptID belongs to LastSeq; empty before the first response.
func (s *Subscription) TranscriptID() string { return s.request.GetTranscriptId() }

// HeadSeq is the newest event there was when the last response was sent.
func (s *Subscription) HeadSeq() int64 { return s.head }

// FirstSeq is the oldest event there is.
func (s *Subscription) FirstSeq() int64 { return s.first }

// CaughtUp tells whether everything that existed at the last response was handed over.
func (s *Subscription) CaughtUp() bool { return s.heard && s.LastSeq() >= s.head }

// Heartbeats is how many responses had no events.
func (s *Subscription) Heartbeats() int { return s.beats }

// Reconnects is how many connections were lost and made again.
func (s *Subscription) Reconnects() int { return s.retries }

// Events gives the events one by one. The loop ends when the session is deleted, or after one error: an
// *Error with CANCELLED or DEADLINE_EXCEEDED when the context did it, TRANSCRIPT_CHANGED, SEQ_IN_FUTURE,
// SESSION_NOT_FOUND and so on when the daemon did, DATA_LOSS when it sent a gap or a repeat. Breaking out
// closes the subscription.
func (s *Subscription) Events() iter.Seq2[*sessiondv1.Event, error] {
	return func(yield func(*sessiondv1.Event, error) bool) {
		defer s.cancel()
		for {
			response, err := s.receive()
			if err != nil {
				if err != io.EOF {
					yield(nil, err)
				}
				return
			}
			for _, event := range response.GetEvents() {
				if bad := s.take(event); bad != nil {
					yield(nil, bad)
					return
				}
				if !yield(event, nil) {
					return
				}
			}
		}
	}
}

// Batches gives the responses as they come, empty ones (heartbeats) too. It ends like Events.
func (s *Subscription) Batches() iter.Seq2[*sessiondv1.SubscribeResponse, error] {
	return func(yield func(*sessiondv1.SubscribeResponse, error) bool) {
		defer s.cancel()
		for {
			response, err := s.receive()
			if err == io.EOF {
				return
			}
			var bad *Error
			for i, event := range response.GetEvents() {
				if bad = s.take(event); bad != nil {
					response.Events = response.Events[:i]
					break
				}
			}
			if !yield(response, err) || err != nil {
				return
			}
			if bad != nil {
				yield(nil, bad)
				return
			}
		}
	}
}

// take moves the bookmark to the event, if that is the next one.
func (s *Subscription) take(event *sessiondv1.Event) *Error {
	last, seq := s.request.GetAfterSeq(), event.GetSeq()
	if seq != last+1 && (last != 0 || seq != s.first) {
		return newError(codes.DataLoss, 0, "the daemon sent event %d after event %d", seq, last)
	}
	s.request.AfterSeq = seq
	return nil
}

// receive gives the next response, over as many connections as it takes; io.EOF at the good end.
func (s *Subscription) receive() (*sessiondv1.SubscribeResponse, error) {
	for {
		response, err := s.read()
		if err == nil {
			return response, s.accept(response)
		}
		s.hangUp()
		if err == io.EOF {
			return nil, io.EOF
		}
		if ended := s.ctx.Err(); ended != nil {
			return nil, wrap(status.FromContextError(ended).Err())
		}
		var failure *Error
		if !errors.As(err, &failure) || s.options.once || !s.heals(failure) {
			return nil, err
		}
		s.retries++
		if s.options.onLost != nil {
			s.options.onLost(failure)
		}
		s.wait(s.pace.next(failure.RetryAfter))
	}
}

func (s *Subscription) read() (*sessiondv1.SubscribeResponse, error) {
	if s.attempt == nil {
		if err := s.connect(); err != nil {
			return nil, err
		}
	}
	s.attempt.watchdog.Reset(s.options.watchdog)
	response, err := s.attempt.stream.Recv()
	s.attempt.watchdog.Stop()
	if err != nil && s.ctx.Err() == nil && context.Cause(s.attempt.stream.Context()) == errSilent {
		return nil, newError(codes.Unavailable, 0, "%v for %v", errSilent, s.options.watchdog)
	}
	return response, err
}

func (s *Subscription) connect() error {
	ctx, cancel := context.WithCancelCause(s.ctx)
	watchdog := time.AfterFunc(s.options.watchdog, func() { cancel(errSilent) })
	stream, err := s.client.Sessions.Subscribe(ctx, s.request)
	if err != nil {
		watchdog.Stop()
		cancel(nil)
		return err
	}
	s.attempt = &attempt{stream: stream, cancel: cancel, watchdog: watchdog, fresh: true}
	return nil
}

func (s *Subscription) hangUp() {
	if s.attempt != nil {
		s.attempt.watchdog.Stop()
		s.attempt.cancel(nil)
		s.attempt = nil
	}
}

// accept takes note of where the transcript stands.
func (s *Subscription) accept(response *sessiondv1.SubscribeResponse) error {
	known := s.request.GetTranscriptId()
	if known != "" && response.GetTranscriptId() != known {
		s.hangUp()
		return newError(codes.FailedPrecondition, sessiondv1.ErrorReason_ERROR_REASON_TRANSCRIPT_CHANGED,
			"the transcript is %s, not %s any more", response.GetTranscriptId(), known)
	}
	s.request.TranscriptId = response.GetTranscriptId()
	s.head, s.first = response.GetHeadSeq(), response.GetFirstSeq()
	s.heard, s.guesses = true, 0
	if len(response.GetEvents()) == 0 {
		s.beats++
	}
	// A daemon that greets and fails, again and again, is not one that does well.
	if len(response.GetEvents()) > 0 || !s.attempt.fresh {
		s.pace.reset()
	}
	s.attempt.fresh = false
	return nil
}

func (s *Subscription) heals(failure *Error) bool {
	heals, guess := failure.mayHeal(s.heard)
	if guess {
		s.guesses++
		return s.guesses <= maxGuesses
	}
	return heals
}

// wait pauses; the end of the context is noticed by the next attempt.
func (s *Subscription) wait(delay time.Duration) {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.ctx.Done():
	}
}
