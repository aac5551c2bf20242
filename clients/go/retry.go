package sessiond

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const maxAttempts = 5

// Mutating is a request of a call that changes something: it carries a request_id.
type Mutating interface {
	proto.Message
	GetRequestId() string
}

// NewRequestID returns a fresh request_id, a random UUID.
func NewRequestID() string {
	var b [16]byte
	// crypto/rand.Read never fails.
	_, _ = rand.Read(b[:])
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// Retry makes a mutating call and, while the daemon is away (UNAVAILABLE), makes it again, at most five
// times within the context's deadline (30 s when it has none). Every attempt carries the same request_id,
// made up when the request has none: the daemon carries the call out once and answers a repetition as it
// did the first time. The request is changed only in that field.
//
//	sent, err := sessiond.Retry(ctx, client.Sessions.Send, &sessiondv1.SendRequest{...})
func Retry[Req Mutating, Resp any](
	ctx context.Context, call func(context.Context, Req, ...grpc.CallOption) (Resp, error), request Req,
) (Resp, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultDeadline)
		defer cancel()
	}
	fillRequestID(request)
	pace := newPace()
	for attempt := 1; ; attempt++ {
		response, err := call(ctx, request)
		var failure *Error
		if err == nil || !errors.As(err, &failure) || failure.Code != codes.Unavailable || attempt == maxAttempts {
			return response, err
		}
		if !pause(ctx, pace.next(failure.RetryAfter)) {
			return response, err
		}
	}
}

func fillRequestID(request Mutating) {
	if request.GetRequestId() != "" {
		return
	}
	m := request.ProtoReflect()
	if field := m.Descriptor().Fields().ByName("request_id"); field != nil {
		m.Set(field, protoreflect.ValueOfString(NewRequestID()))
	}
}

// pace is the time between attempts: 100 ms, doubling up to 5 s, spread so that the many clients of a
// restarted daemon do not return at the same instant.
type pace struct{ ceiling time.Duration }

const (
	firstDelay = 100 * time.Millisecond
	maxDelay   = 5 * time.Second
)

func newPace() *pace { return &pace{firstDelay} }

func (p *pace) reset() { p.ceiling = firstDelay }

func (p *pace) next(asked *time.Duration) time.Duration {
	delay := time.Duration(float64(p.ceiling) * (0.8 + 0.4*mathrand.Float64()))
	p.ceiling = min(2*p.ceiling, maxDelay)
	if asked != nil {
		delay = max(delay, *asked)
	}
	return delay
}

// pause waits; false: the context ended first, or will end before it is over.
func pause(ctx context.Context, delay time.Duration) bool {
	if deadline, bounded := ctx.Deadline(); bounded && time.Until(deadline) <= delay {
		return false
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
